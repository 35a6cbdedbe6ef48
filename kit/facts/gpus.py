"""GPUs: which, who holds their memory, and how they are wired. All through `nvidia-smi` and /sys, never changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kit.facts.base import Fact, words
from kit.masking import masked
from kit.topology import Iommu, Nic, parse_links, parse_p2p


@dataclass(frozen=True)
class Gpu:
    """compute_capability is "" where the driver is too old to say."""
    index: int
    name: str
    memory_mib: int
    used_mib: int
    driver: str
    compute_capability: str
    mig: bool = False


@dataclass(frozen=True)
class GpuHolder:
    """A process that holds GPU memory. gpu None: of a device that the list of GPUs does not have.

    used_mib is what the driver says; where it does not ([N/A]), an equal share of what else is in use there.
    """
    gpu: int | None
    pid: int
    user: str
    used_mib: int
    command: str


@dataclass(frozen=True)
class GpuUse:
    """MiB in use of each GPU, and by whom. `trouble` is what nvidia-smi said instead, "" where it answered."""
    used_mib: Mapping[int, int] = field(default_factory=dict)
    holders: tuple[GpuHolder, ...] = ()
    trouble: str = ""


def _mib(text: str) -> int | None:
    return int(text) if text.isdigit() else None        # "[N/A]" on shared memory, in MIG mode, under WSL


def _rows(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.strip().splitlines()]
    return [row for row in rows if 5 <= len(row) <= 7 and row[0].isdigit()]


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(int(r[0]), r[1], _mib(r[2]) or 0, _mib(r[3]) or 0, r[4], r[5] if len(r) > 5 else "",
                     r[6:] == ["Enabled"]) for r in _rows(text))


def _trouble(text: str) -> str:
    return "" if _rows(text) else words(text)[:300]


def parse_use(text: str) -> GpuUse:
    """Lines `gpu INDEX, UUID, MIB`, `app UUID PID MIB USER COMMAND…`, `trouble TEXT`."""
    index, used, apps, trouble = {}, {}, [], ""
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "gpu" and len(cells := [c.strip() for c in rest.split(",")]) == 3 and cells[0].isdigit():
            index[cells[1]], used[int(cells[0])] = int(cells[0]), _mib(cells[2]) or 0
        elif kind == "app" and len(cells := rest.split(None, 4)) >= 4 and cells[1].isdigit():
            apps.append(cells + [""] * (5 - len(cells)))
        elif kind == "trouble":
            trouble = words(rest)[:300]
    holders = [(GpuHolder(index.get(a[0]), int(a[1]), a[3].strip("-"), _mib(a[2]) or 0, masked(words(a[4]))),
                _mib(a[2]) is None) for a in apps]
    return GpuUse(used, tuple(_shared(h, holders, used) if unsaid else h for h, unsaid in holders), trouble)


def _shared(holder: GpuHolder, holders: list[tuple[GpuHolder, bool]], used: Mapping[int, int]) -> GpuHolder:
    there = [(h, unsaid) for h, unsaid in holders if h.gpu == holder.gpu]
    rest = used.get(holder.gpu, 0) - sum(h.used_mib for h, _ in there)
    return replace(holder, used_mib=max(0, rest) // sum(unsaid for _, unsaid in there))


def _nics(text: str) -> tuple[Nic, ...] | None:
    """Lines `rdma NAME LINK-LAYER STATE`, `net NAME ethernet STATE`; `seen` ends them where /sys can be read."""
    if "seen" not in text.split():
        return None
    rows = [line.split() for line in text.splitlines()]
    return tuple(Nic(r[1], r[0] == "rdma", r[2].lower(), r[3].lower() in ("active", "up"))
                 for r in rows if len(r) == 4 and r[0] in ("rdma", "net"))


def _iommu(text: str) -> Iommu:
    """Lines `word W`, `units N`, `gpu ADDRESS DOMAIN`, `acs ON ALL`, `vm yes`."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    kinds = ("word", "units", "gpu", "acs", "vm")
    said = {kind: [r[1:] for r in rows if r[0] == kind and len(r) > 1] for kind in kinds}
    acs = [tuple(map(int, r)) for r in said["acs"] if len(r) == 2 and all(n.isdigit() for n in r)]
    return Iommu(words=tuple(r[0] for r in said["word"]),
                 units=next((int(r[0]) for r in said["units"] if r[0].isdigit()), None),
                 domains={r[0]: r[1] for r in said["gpu"] if len(r) == 2},
                 acs=acs[0] if acs and acs[0][1] else None, vm=said["vm"] == [["yes"]])


def _nodes(text: str) -> int | None:
    """`0-1,3` → 3 nodes."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return sum(int(b or a) - int(a) + 1 for a, b in spans) or None


BUSY_MIB = 1024         # a driver and a desktop hold less on a GPU; a model more

# A GPU that fell off its bus lets nvidia-smi wait for minutes; the survey has 120 s for all.
GPU_HOLDERS = Fact("gpu_use", """
command -v nvidia-smi >/dev/null 2>&1 || exit 0
style=--format=csv,noheader,nounits
gpus=$(timeout 15 nvidia-smi --query-gpu=index,uuid,memory.used $style 2>&1) || {
  printf 'trouble '; printf '%s' "$gpus" | tr '\\000-\\037' ' '; echo; exit 0; }
printf '%s\\n' "$gpus" | sed 's/^/gpu /'
timeout 15 nvidia-smi --query-compute-apps=gpu_uuid,pid,used_gpu_memory $style 2>/dev/null |
while IFS=', ' read -r uuid pid mib; do
  case $pid in ''|*[!0-9]*) continue ;; esac
  printf 'app %s %s %s ' "$uuid" "$pid" "${mib%% *}"
  printf '%s ' "$(stat -c %U "/proc/$pid" 2>/dev/null || echo -)"
  if [ -r "/proc/$pid/cmdline" ]; then tr '\\000-\\037' ' ' < "/proc/$pid/cmdline"; fi
  echo
done""", parse_use)
"""MiB in use per GPU and who holds them; also alone: `GPU_HOLDERS.parse(host.run(sh(GPU_HOLDERS.script)).text)`."""

FACTS = (
    # The newest fields first: an old driver refuses the whole query for one field it does not know.
    Fact("gpus", """
command -v nvidia-smi >/dev/null 2>&1 || exit 0
for more in ,compute_cap,mig.mode.current ,compute_cap ''; do
  said=$(timeout 15 nvidia-smi --query-gpu=index,name,memory.total,memory.used,driver_version$more \\
         --format=csv,noheader,nounits 2>&1)
  case $said in *'not a valid field'*) ;; *) break ;; esac
done
printf '%s\\n' "$said\"""", parse_gpus),
    Fact("gpu_trouble", "", _trouble, reads="gpus"),
    GPU_HOLDERS,
    Fact("links", "timeout 15 nvidia-smi topo -m 2>/dev/null || true", parse_links),
    Fact("p2p", "timeout 15 nvidia-smi topo -p2p r 2>/dev/null || true", parse_p2p),
    Fact("numa_nodes", "cat /sys/devices/system/node/online 2>/dev/null || true", _nodes),
    Fact("nics", """
for p in /sys/class/infiniband/*/ports/*; do
  [ -d "$p" ] || continue
  d=${p%/ports/*}; printf 'rdma %s %s %s\\n' "${d##*/}" "$(cat "$p/link_layer")" "$(cut -d' ' -f2 "$p/state")"
done
for d in /sys/class/net/*; do
  [ -e "$d/device" ] && printf 'net %s ethernet %s\\n' "${d##*/}" "$(cat "$d/operstate")"
done
[ -d /sys/class/net ] && echo seen || true""", _nics),
    # A domain of type DMA translates each access of the device, `identity` passes it through.
    Fact("iommu", """
tr ' ' '\\n' < /proc/cmdline | grep -iE 'iommu|acs' | grep -vi 'key\\|token\\|pass' | sed 's/^/word /'
[ -d /sys/class/iommu ] && echo "units $(ls /sys/class/iommu | wc -l)"
for d in /sys/bus/pci/devices/*; do
  read -r vendor < "$d/vendor" && [ "$vendor" = 0x10de ] && read -r class < "$d/class" || continue
  case $class in 0x03*) ;; *) continue ;; esac
  kind=none; [ -d "$d/iommu_group" ] && { kind=unsaid; read -r kind < "$d/iommu_group/type"; }
  printf 'gpu %s %s\\n' "${d##*/}" "$kind"
done
timeout 15 lspci -vvv 2>/dev/null |
  awk '/ACSCtl:/ {all++; if (/SrcValid\\+|ReqRedir\\+/) on++} END {printf "acs %d %d\\n", on, all}'
grep -q '^flags.* hypervisor' /proc/cpuinfo && echo 'vm yes' || true""", _iommu),
)
