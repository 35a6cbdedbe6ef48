"""A lab host with an SGLang: the stand-in at /opt/sglang, the K2.6 pair's headers in /models, a disk for the rest.

What is driven with it are the calls that the notebooks make.
"""

import shutil

from machines import LAB
from standin import install

import kit
from kit import project

ROOT = LAB / "alpha" / "root"                   # alpha's disk, as seen from outside
CARDS = project.root() / "data" / "cards"
MODELS = {"Kimi-K2.6": "kimi-k2.6", "kimi-k2.6-eagle3": "kimi-k2.6-eagle3"}
CLEAN = """
set -- /etc/systemd/system/specbook-*.service
if [ -e "$1" ]; then
  for f; do systemctl kill --signal=KILL "${f##*/}" 2>/dev/null; systemctl disable -q "${f##*/}"; rm -f "$f"; done
  systemctl daemon-reload; systemctl reset-failed
fi
for h in /home/*; do
  [ -d "$h/.config" ] || continue
  u=${h##*/}; systemctl --user --machine="$u@" stop 'specbook-*' 2>/dev/null
done
rm -rf /home/*/.specbook /home/*/.config /root/.specbook /tmp/specbook.lock.d"""


def furnish():
    install(ROOT / "opt/sglang")
    for name, card in MODELS.items():
        shutil.copytree(CARDS / card, ROOT / "models" / name)


def strip():
    shutil.rmtree(ROOT / "opt/sglang", ignore_errors=True)
    shutil.rmtree(ROOT / "models", ignore_errors=True)


def k26(arm="eagle3", host="alpha", supervisor="systemd", fault="", **changes):
    """configs/k26-eagle3.yaml on a lab host: a start takes a moment, deadlines are short."""
    written = kit.Experiment.load("configs/k26-eagle3.yaml", host)
    env = {"STANDIN_SPEED": "0", "STANDIN_FAULT": fault}
    return written.with_(**{
        "host.supervisor": supervisor, "drafter": {"source": "host:/models/kimi-k2.6-eagle3"},
        "engine.env": {**written.engine.env, **env}, "serve.healthy_within_s": 8.0, "serve.stop_within_s": 2.0,
        "arms": {"baseline": {"algorithm": "none"}, "eagle3": {"algorithm": "eagle3"}, "eagle": {"algorithm": "eagle"}},
        "arm_name": arm, "bench.prompt_sets": ("chat",), "bench.prompts": 2, "bench.concurrency": (1,),
        "bench.output_tokens": 16, "bench.warmup": 0, **changes})


def plan(exp, host, want="serving"):
    return kit.plan(exp, kit.survey(exp, host), want)


def apply(exp, host, want="serving"):
    """Plans and applies; the finished job."""
    return kit.apply(plan(exp, host, want), host).wait(60)
