"""Each notebook by itself, as a reader runs it: on a host where nothing is yet, and again."""

import nbclient
import nbformat
import pytest
from conftest import CONFIG

import kit
from kit import rehearsal


@pytest.fixture
def project(folder, monkeypatch):
    monkeypatch.chdir(folder)
    yield folder
    exp = kit.Experiment.load(CONFIG)
    host = kit.connect(exp)
    kit.apply(kit.plan(exp, kit.survey(exp, host), "stopped"), host).result(60)
    host.close()
    rehearsal.stop()


def execute(folder, name):
    """Run the notebook against CONFIG; its executed copy."""
    book = nbformat.read(folder / "notebooks" / f"{name}.ipynb", 4)
    parameters = next(cell for cell in book.cells if cell.cell_type == "code")
    assert "configs/laptop.yaml" in parameters.source
    parameters.source = parameters.source.replace("configs/laptop.yaml", CONFIG)
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3",
                            resources={"metadata": {"path": str(folder / "notebooks")}}).execute()
    return book


def there():
    """What is on the host, and since when."""
    exp = kit.Experiment.load(CONFIG)
    now = kit.survey(exp, kit.connect(exp))
    return {u.name: (u.pid, u.started_at) for u in now.units} | {name: m.since_s for name, m in now.models.items()}


@pytest.mark.parametrize("name", ["20-check", "99-stop-and-undo"])
def test_alone_it_runs_on_a_host_where_nothing_is(project, name):
    execute(project, name)


@pytest.mark.parametrize("name", ["10-fetch", "50-benchmark", "80-tune"])
def test_alone_it_does_what_it_needs_and_again_it_changes_nothing(project, name):
    execute(project, name)
    before = there()
    assert before
    execute(project, name)
    assert there() == before


@pytest.mark.parametrize("name, first", [("40-log", "notebook 30"), ("90-compare", "notebooks 50")])
def test_alone_without_what_it_reads_it_says_which_to_run_first(project, name, first):
    with pytest.raises(nbclient.exceptions.CellExecutionError, match=f"PlanError.*\n.*\n.*{first}"):
        execute(project, name)
