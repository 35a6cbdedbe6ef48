"""Configs: what is refused, and that the message names file and field."""

import pytest

from kit import project
from kit.errors import SpecError
from kit.spec import Checkpoint, EngineSpec, Experiment, Spec

CONFIGS = sorted((project.root() / "configs").glob("*.yaml"))
MICRO = project.root() / "configs" / "micro.yaml"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_shipped_config_loads(path):
    assert Experiment.load(path).arms


@pytest.mark.parametrize("wrong, field", [
    ("servee: {port: 9}", "servee: no such field"),
    ("serve: {port: 80}", "serve.port: Input should be greater than or equal to 1024 (got 80)"),
    ("serve: {porrt: 8101}", "serve.porrt: no such field"),
    ("arms: {eagle3: {algorithm: eagle4}}", "arms.eagle3.algorithm"),
    ("arms: {eagle3: {algorithm: eagle3, steps: 0}}", "arms.eagle3.steps"),
    ("arms: {Eagle 3: {algorithm: none}}", "names are lower-case"),
    ("arms: {}", "arms: "),
    ("bench: {concurrency: [0]}", "bench.concurrency"),
    ("bench: {concurrency: [1, 1]}", "bench.concurrency"),
    ("target: {source: nothing}", "target.source: should read scheme:reference"),
    ("target: {source: 'folder:x', sha256: abc}", "target.sha256"),
    ("drafter: null", "needs a drafter"),
    ("name: Not Good", "name: "),
    ("host: {ssh: x, key: secret}", "host.key: no such field"),
])
def test_a_wrong_field_is_refused_with_file_and_dotted_path(tmp_path, wrong, field):
    file = tmp_path / "x.yaml"
    kept = [block for block in _blocks(MICRO.read_text()) if not block.startswith(wrong.split(":")[0] + ":")]
    file.write_text("\n".join([*kept, wrong]))
    with pytest.raises(SpecError) as caught:
        Experiment.load(file)
    lines = str(caught.value).splitlines()
    assert field in lines[0] and str(file) in lines[1] and len(lines) == 3


def _blocks(text):
    """Top-level YAML entries, each with its indented lines."""
    out = []
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            out.append(line)
        elif out and line.startswith(" "):
            out[-1] += "\n" + line
    return out


@pytest.mark.parametrize("text, why", [("a: [", "not YAML"), ("- 1", "mapping"), ("\x00", "not YAML"), ("", "mapping"),
                                       ("name: a\nname: b\n", "name is written twice")])
def test_a_file_that_is_no_config_is_refused(tmp_path, text, why):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=why):
        Experiment.load(file)


def test_a_missing_config_names_the_path():
    with pytest.raises(SpecError, match="cannot read"):
        Experiment.load("configs/none.yaml")


def test_changing_a_copy_is_checked_and_leaves_the_original():
    exp = Experiment.load(MICRO).arm("eagle3")
    other = exp.with_(**{"spec.steps": 5, "serve.port": 9000})
    assert (exp.spec.steps, other.spec.steps, other.serve.port) == (3, 5, 9000)
    assert exp.diff(other) == [("arms.eagle3.steps", 3, 5), ("serve.port", 8102, 9000)]
    with pytest.raises(SpecError, match="arms.eagle3.steps"):
        exp.with_(**{"spec.steps": 99})
    with pytest.raises(SpecError, match="no such field"):
        exp.with_(**{"sevre.port": 9000})
    with pytest.raises(SpecError, match="no arm 'x'"):
        exp.arm("x")


def test_another_host_can_be_named_without_touching_the_file():
    assert Experiment.load(MICRO, host="gpu-7").host.ssh == "gpu-7"


def test_a_chain_of_three_steps_drafts_three_and_verifies_four():
    assert (Spec(algorithm="eagle3", steps=3).drafts, Spec(algorithm="eagle3", steps=3).verified) == (3, 4)
    assert (Spec().drafts, Spec().verified) == (0, 1)
    assert Spec(algorithm="ngram", draft_tokens=12).drafts == 12


def test_checkpoints_of_different_sources_lie_in_different_folders():
    a, b = Checkpoint(source="folder:a/x.gguf"), Checkpoint(source="folder:b/x.gguf")
    assert a.slug != b.slug and a.path("/r") == f"/r/models/{a.slug}/x.gguf"
    assert Checkpoint(source="host:/models/K2").path("/r") == "/models/K2"


@pytest.mark.parametrize("root", ["", "/", "~", "~/", "~other/x", "/data/../..", "a\0b"])
def test_the_folder_on_the_host_is_one_of_its_own(root):
    with pytest.raises(SpecError, match=r"host\.root: should be a folder of its own"):
        Experiment.load(MICRO).with_(**{"host.root": root})


@pytest.mark.parametrize("field, value", [
    ("host.ssh", ""), ("engine.args", ("a\0b",)), ("engine.env", {"A=B": "x"}), ("engine.env", {"": "x"}),
    ("serve.stop_within_s", 1e9), ("serve.healthy_within_s", float("inf")), ("bench.request_limit_s", 1e12),
])
def test_what_no_host_could_carry_out_is_refused_at_load(field, value):
    with pytest.raises(SpecError) as caught:
        Experiment.load(MICRO).with_(**{field: value})
    assert field.split(".")[0] in caught.value.what


@pytest.mark.parametrize(("name", "value", "secret"), [
    ("HF_TOKEN", "abc", True), ("OPENAI_API_KEY", "x", True), ("PROXY", "http://me:word@proxy:1", True),
    ("ANY", "hf_abcdefgh", True), ("SGLANG_SIMULATE_ACC_TOKEN_MODE", "real-draft-token", False),
    ("TOKENIZERS_PARALLELISM", "false", False), ("NCCL_P2P_DISABLE", "1", False), 
    ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", False)])
def test_a_secret_in_the_environment_of_a_config_is_refused_and_a_switch_is_not(name, value, secret):
    make = lambda: EngineSpec(name="sglang", env={name: value})     # noqa: E731
    if not secret:
        assert make().env == {name: value}
    else:
        with pytest.raises(ValueError, match=f"{name} looks like a secret.*under secrets"):
            make()
