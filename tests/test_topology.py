"""How GPUs are wired and what follows for NCCL: tests/fixtures/topology/cases.yaml. A new rule is a new case there."""

from pathlib import Path

import pytest
import yaml

from kit import project
from kit.facts import FACTS
from kit.nccl import advice
from kit.nccl.case import Case
from kit.spec import Experiment
from kit.topology import Iommu, Topology, distance, parse_links, parse_p2p

FIXTURES = Path(__file__).parent / "fixtures" / "topology"
BOOK = yaml.safe_load((FIXTURES / "cases.yaml").read_text())
BY_NAME = {f.name: f for f in FACTS}


def text(name):
    return (FIXTURES / name).read_text()


def wiring(host):
    """(topology, gpus) of a host of the book, through the parsers of the survey."""
    said = BOOK["hosts"][host]
    read = {name: BY_NAME[name].parse(text(said[name]) if said.get(name, "").endswith(".txt") else said.get(name, ""))
            for name in ("links", "p2p", "gpus", "numa_nodes", "nics", "iommu")}
    links, numa = read["links"]
    return Topology(links, read["p2p"], numa, read["numa_nodes"], read["nics"], read["iommu"]), read["gpus"]


@pytest.mark.parametrize("case", BOOK["cases"], ids=lambda c: c["about"])
def test_advice_says_what_the_case_says_and_why(case):
    topology, gpus = wiring(case["host"])
    report = advice(topology, gpus, case.get("env", {}), case["tp"], case.get("args", ()), case.get("claim", ""))
    assert {f.id: f.verdict for f in report} == case["says"]
    assert len(report) == len(case["says"]), "one finding per id"
    for rule, words in case.get("words", {}).items():
        assert words in " ".join(f"{f.what} {f.why} {f.fix}" for f in report if f.id == rule)
    assert all(f.why or f.fix for f in report if f.verdict == "warn"), "a warning has a reason or a way out"
    assert report.ok, "advice never stops a launch"


def test_every_constructed_fixture_says_so_and_is_used():
    used = {name for host in BOOK["hosts"].values() for name in host.values() if str(name).endswith(".txt")}
    files = {p.name for p in FIXTURES.glob("*.txt")}
    assert files == used
    assert {n for n in files if not text(n).startswith("# Constructed")} == \
        {"h200x1-topo-m.txt", "h200x2-topo-m.txt", "h200x2-topo-p2p-r.txt"}, "the recorded ones"


def test_the_recorded_table_of_two_h200():
    links, numa = parse_links(text("h200x2-topo-m.txt"))
    assert links == {(0, 1): "NV18", (1, 0): "NV18"} and numa == {0: 0, 1: 0}
    assert parse_p2p(text("h200x2-topo-p2p-r.txt")) == {(0, 1): "OK", (1, 0): "OK"}
    assert parse_links(text("h200x1-topo-m.txt")) == ({}, {0: 0})


def test_nic_columns_are_no_links_of_gpus_and_the_matrix_is_symmetric():
    links, numa = parse_links(text("pro6000x8-topo-m.txt"))
    assert len(links) == 8 * 7 and all(links[b, a] == link for (a, b), link in links.items())
    assert (links[0, 1], links[0, 2], links[3, 4]) == ("PIX", "NODE", "SYS")
    assert numa == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}


def test_cells_that_touch_and_cpu_lists_with_spaces_are_told_apart():
    links, numa = parse_links(text("nvlink-pairs-x4-touching-topo-m.txt"))
    assert len(links) == 12 and links[0, 1] == links[3, 2] == "NV4" and links[1, 2] == "SYS"
    assert numa == {0: 0, 1: 0, 2: 1, 3: 1}


def test_a_bundle_of_links_does_not_run_into_the_cpu_list():
    table = "      GPU0  GPU1  CPU Affinity  NUMA Affinity\nGPU0   X    NV180-31  0\nGPU1  NV18   X 0-31  0\n"
    assert parse_links(table) == ({(0, 1): "NV18", (1, 0): "NV18"}, {0: 0, 1: 0})


def test_device_names_that_touch_are_two_columns():
    table = "      GPU0  mlx5_9mlx5_10  CPU Affinity\nGPU0   X    PIXSYS  0-3  1\n"
    assert parse_links(table)[1] == {0: 1}


def test_numa_nodes_alone_tell_that_gpus_lie_apart():
    found = {f.id: f.verdict for f in advice(Topology({}, numa={0: 0, 1: 1}), wiring("h200x2")[1], {}, 2)}
    assert (found["gpu-sockets"], found["gpu-links"]) == ("warn", "unknown")


@pytest.mark.parametrize("text", [
    "", "no devices were found", "Failed to initialize NVML: Driver/library version mismatch", "\tGPU0\tGPU1\n",
    "GPU0\t X \tNV18\t0-31\t0\t\tN/A\n", "\x1b[4m\x1b[0m\n\t\n",
])
def test_what_is_no_table_gives_no_links(text):
    assert parse_links(text) == ({}, {}) and parse_p2p(text) == {}


def test_a_row_that_breaks_off_gives_nothing_and_its_pairs_are_unknown():
    links, _ = parse_links("\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tPIX\tNODE\t0-3\nGPU1\tPIX\t X")
    assert Topology(links).between((0, 1, 2)) == {(0, 1): "PIX", (0, 2): "NODE", (1, 2): ""}


def test_links_are_ordered_from_near_to_far():
    order = ["NV4", "PIX", "PXB", "PHB", "NODE", "SYS", "strange"]
    assert sorted(reversed(order), key=distance) == order and distance("NV1") == distance("NV18")


@pytest.mark.parametrize("domains, units, translates", [
    ({"a": "DMA-FQ"}, 4, True), ({"a": "DMA"}, None, True), ({"a": "identity", "b": "DMA"}, 4, True),
    ({"a": "identity"}, 4, False), ({"a": "none"}, 0, False), ({}, 0, False), ({"a": "unsaid"}, 4, None),
    ({}, None, None),
])
def test_whether_the_iommu_translates_is_read_from_the_gpus_own_group(domains, units, translates):
    assert Iommu(domains=domains, units=units).translates is translates


@pytest.mark.parametrize("said, level", [("5", "SYS"), ("4", "SYS"), ("99", "SYS"), ("3", "PHB"), ("1", "PIX"),
                                         ("0", "LOC"), ("NVL", "NVL"), ("sys", ""), ("-1", ""), ("", ""), (None, None)])
def test_old_numbers_of_the_p2p_level_are_read_as_nccl_reads_them(said, level):
    env = {} if said is None else {"NCCL_P2P_LEVEL": said}
    assert Case(Topology(), (), env, 2, (), "").level == level


def test_the_settings_of_the_first_deployment_are_a_config_that_the_advice_reads():
    exp = Experiment.load(project.root() / "configs" / "k26-eagle3.yaml")
    topology, gpus = wiring("pro6000x8")
    said = {f.id for f in advice(topology, gpus, exp.engine.env, exp.serve.tp, exp.engine.args) if f.verdict == "warn"}
    assert {"nccl-forced", "nccl-p2p-level", "custom-all-reduce"} <= said


def test_a_reader_sees_links_nodes_and_nics_and_nothing_of_a_host_without_them():
    rows = dict(wiring("pro6000x8-iommu")[0].rows())
    assert rows == {"GPU links": "PIX 4, NODE 8, SYS 16", "GPU P2P": "all pairs",
                    "NUMA": "2 nodes; node 0: GPU 0, 1, 2, 3; node 1: GPU 4, 5, 6, 7",
                    "RDMA NICs": "mlx5_0, mlx5_1, mlx5_2", "IOMMU": "translates the accesses of GPUs"}
    assert dict(wiring("pro6000x8-no-p2p")[0].rows())["GPU P2P"].startswith("not between 0-4 TNS, 0-5 TNS")
    assert Topology().rows() == [] and wiring("h200x1")[0].rows() == []
