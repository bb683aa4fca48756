"""What differs between the nodes of a job: facts of each, side by side, and which node is the odd one. Pure.

A majority decides: where more than half of the nodes are alike, the others are odd. Two nodes differ, and nobody can say
which of them is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from stepscope.core.dataclass import record
from stepscope.core.units import format_bytes_binary, format_duration
from stepscope.core.words import in_words
from stepscope.machine.judging import topology_of
from stepscope.machine.topology import Topology
from stepscope.records.environment import EnvironmentRecord

MEMORY_TOLERANCE = 0.03
"""Memory of equal machines differs by what firmware and kernel keep: below this share it is the same."""

CLOCKS_APART_NS = 10_000_000
"""Clocks that NTP holds agree to a few milliseconds in one network (NTP's FAQ: 1 to 10 ms); beyond it, and beyond what the
measurement may be off by, they are apart."""

VARIABLE_PREFIXES = (
    "NCCL_",
    "RCCL_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "KMP_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "UCX_",
    "FI_",
    "TP_",
)
"""Variables that change how ranks compute and communicate; those of a launcher differ between nodes as they should."""

_PER_NODE = frozenset(
    {"CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
)


@record
class NodeFacts:
    """clock_ns: its clock less that of the one who asks; clock_error_ns: by how much that may be off. None: not measured.

    interface: that reaches the other nodes, where it is known.
    """

    name: str
    environment: EnvironmentRecord
    clock_ns: int | None = None
    clock_error_ns: int | None = None
    interface: str | None = None


@record
class NodeDifference:
    """values: node -> its value as text. odd: nodes whose value the majority does not share; empty without a majority.

    command: shows the value on a node. effect: why it matters.
    """

    key: str
    title: str
    values: Mapping[str, str]
    odd: tuple[str, ...]
    command: str
    effect: str

    @property
    def sentence(self) -> str:
        """``gpu3 has 2.6.0, the other 3 have 2.13.0``; without a majority, each value with its nodes."""
        by_value: dict[str, list[str]] = {}
        for node, value in self.values.items():
            by_value.setdefault(value, []).append(node)
        if not self.odd:
            return "; ".join(f"{in_words(nodes, at_most=4)}: {value}" for value, nodes in by_value.items())
        usual = next(value for node, value in self.values.items() if node not in self.odd)
        odd = "; ".join(f"{in_words(nodes, at_most=4)}: {value}" for value, nodes in by_value.items() if value != usual)
        return f"{odd}; the other {len(by_value[usual])}: {usual}"


@record
class Trait:
    """One thing that nodes of a job have alike. of: its value on a node as text, None where it is unknown."""

    key: str
    title: str
    of: Callable[[NodeFacts], str | None]
    command: str
    effect: str


def _package_getter(name: str) -> Callable[[NodeFacts], str | None]:
    return lambda node: node.environment.packages.get(name)


def _cuda_text(node: NodeFacts) -> str | None:
    torch = node.environment.torch
    return None if torch is None else torch.cuda_version or torch.hip_version or "none"


def _gpus_text(node: NodeFacts) -> str | None:
    record = node.environment
    names = [gpu.name for gpu in record.gpus] or list(record.torch.device_names if record.torch else ())
    return " + ".join(f"{number}x {name}" for name, number in Counter(names).items()) or "none"


def _of_gpus(read: Callable[[EnvironmentRecord], Sequence[object]]) -> Callable[[NodeFacts], str | None]:
    def value(node: NodeFacts) -> str | None:
        texts = [str(entry) for entry in read(node.environment) if entry is not None]
        return ", ".join(dict.fromkeys(texts)) or None

    return value


def _links_text(node: NodeFacts) -> str | None:
    topology = topology_of(node.environment)
    if not isinstance(topology, Topology):
        return None
    labels = Counter(link.label for pair in topology.gpu_pairs() if (link := topology.link(*pair)) is not None)
    return ", ".join(f"{label} between {number} pairs" for label, number in sorted(labels.items())) or None


def _nics_text(node: NodeFacts) -> str | None:
    """Real interfaces and RDMA devices with their speeds, by kind."""
    nics = [nic for nic in node.environment.nics if nic.up and nic.kind not in ("loopback", "virtual")]
    kinds = Counter(
        (nic.kind, f" {nic.speed_bits_per_s / 1e9:g} Gbit/s" if nic.speed_bits_per_s else "") for nic in nics
    )
    return ", ".join(f"{number}x {kind}{speed}" for (kind, speed), number in sorted(kinds.items())) or None


def _mtu_text(node: NodeFacts) -> str | None:
    """Return the MTU of the interface that reaches the others, else of all that could."""
    nics = [nic for nic in node.environment.nics if nic.mtu_bytes is not None and nic.up and nic.kind != "loopback"]
    named = [nic for nic in nics if nic.name == node.interface] or [nic for nic in nics if nic.kind != "virtual"]
    return ", ".join(sorted({str(nic.mtu_bytes) for nic in named})) or None


def _limit_getter(of: Callable[[EnvironmentRecord], int | None]) -> Callable[[NodeFacts], str | None]:
    """Return a function that gives a node's limit as text; None: not recorded."""

    def value(node: NodeFacts) -> str | None:
        if node.environment.limits is None:
            return None
        limit = of(node.environment)
        return "unlimited" if limit is None else str(limit)

    return value


def _synchronised_text(node: NodeFacts) -> str | None:
    synchronised = node.environment.clock_synchronised
    return None if synchronised is None else "synchronised" if synchronised else "not synchronised"


_SMI = "nvidia-smi --query-gpu=name,driver_version,power.limit,pcie.link.gen.max,pcie.link.width.current --format=csv"

TRAITS: tuple[Trait, ...] = (
    Trait(key="torch", title="torch", of=lambda node: node.environment.torch.version if node.environment.torch else None,
          command="python3 -c 'import torch; print(torch.__version__)'", effect="ranks of two versions hang or fail"),
    Trait(key="cuda", title="CUDA of torch", of=_cuda_text, command="python3 -c 'import torch; print(torch.version.cuda)'",
          effect="kernels differ, and with them times and results"),
    Trait(key="nccl", title="NCCL", of=lambda node: node.environment.torch.nccl_version if node.environment.torch else None,
          command="python3 -c 'import torch; print(torch.cuda.nccl.version())'", effect="NCCL refuses to connect, or hangs"),
    Trait(key="python", title="Python", of=lambda node: node.environment.python, command="python3 --version",
          effect="pickled objects and wheels may not fit"),
    Trait(key="stepscope", title="stepscope", of=_package_getter("stepscope"), command="stepscope --version",
          effect="command and ranks exchange files of one version"),
    Trait(key="driver", title="GPU driver", of=_of_gpus(lambda r: [gpu.driver_version for gpu in r.gpus]), command=_SMI,
          effect="clocks, kernels and NCCL's transports depend on it"),
    Trait(key="gpus", title="GPUs", of=_gpus_text, command="nvidia-smi -L", effect="every step waits for the slowest rank"),
    Trait(key="power_limit", title="GPU power limit", of=_of_gpus(lambda r: [gpu.power_limit_w for gpu in r.gpus]),
          command=_SMI, effect="a lower limit is a lower clock under load"),
    Trait(key="pcie", title="PCIe lanes of the GPUs", of=_of_gpus(lambda r: [gpu.pcie_width for gpu in r.gpus]),
          command=_SMI, effect="half the lanes are half the rate to host and network"),
    Trait(key="links", title="links between GPUs", of=_links_text, command="nvidia-smi topo -m",
          effect="collectives inside a node take its slowest link's time"),
    Trait(key="nics", title="network interfaces", of=_nics_text, command="ip -br link; ethtool IFACE; ibstat",
          effect="every collective waits for the slowest node's network"),
    Trait(key="mtu", title="MTU", of=_mtu_text, command="ip link show",
          effect="large packets are lost or split: stalls, low rate"),
    Trait(key="cpu", title="CPU", of=lambda node: node.environment.cpu_model, command="lscpu",
          effect="data loading and launches take another time"),
    Trait(key="cores", title="usable cores", of=lambda node: str(node.environment.usable_cores),
          command="nproc; cat /sys/fs/cgroup/cpu.max", effect="ranks share fewer cores"),
    Trait(key="kernel", title="kernel", of=lambda node: node.environment.kernel, command="uname -r",
          effect="network and scheduler behave differently"),
    Trait(key="open_files", title="limit of open files",
          of=_limit_getter(lambda record: record.limits.open_files_soft if record.limits else None), command="ulimit -n",
          effect="loaders and many ranks run out of descriptors"),
    Trait(key="locked_memory", title="limit of locked memory",
          of=_limit_getter(lambda record: record.limits.locked_memory_bytes if record.limits else None), command="ulimit -l",
          effect="RDMA cannot register its buffers"),
    Trait(key="ntp", title="clock", of=_synchronised_text, command="timedatectl; chronyc tracking",
          effect="logs and traces of the nodes cannot be ordered"),
)  # fmt: skip
"""What nodes of a job have alike, in the order in which it is shown."""


def differences(nodes: Sequence[NodeFacts]) -> tuple[NodeDifference, ...]:
    """Return what is not the same on all ``nodes``; what is unknown on a node is left out for it."""
    of_traits = [
        _node_difference(trait, {n.name: v for n in nodes if (v := trait.of(n)) is not None}) for trait in TRAITS
    ]
    return tuple(
        difference
        for difference in (*of_traits, _memory_difference(nodes), *_variable_differences(nodes), clocks(nodes))
        if difference is not None
    )


def shared(nodes: Sequence[NodeFacts]) -> tuple[tuple[str, str], ...]:
    """Return (title, value) of what is known on all ``nodes`` and the same."""
    return tuple(
        (trait.title, values.pop())
        for trait in TRAITS
        if len(values := {trait.of(node) or "" for node in nodes}) == 1 and values != {""}
    )


def _node_difference(trait: Trait, values: Mapping[str, str]) -> NodeDifference | None:
    """Return the difference of nodes in one trait; None: they are equal."""
    if len(set(values.values())) < 2:
        return None
    return NodeDifference(
        key=trait.key,
        title=trait.title,
        values=values,
        odd=odd_ones(values),
        command=trait.command,
        effect=trait.effect,
    )


def odd_ones(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes that differ from the value of more than half; none where no value has such a majority."""
    usual, number = Counter(values.values()).most_common(1)[0]
    return tuple(node for node, value in values.items() if value != usual) if 2 * number > len(values) else ()


def _memory_difference(nodes: Sequence[NodeFacts]) -> NodeDifference | None:
    """Return the difference in memory; sizes that are nearly equal are one."""
    sizes = {node.name: node.environment.memory_bytes for node in nodes}
    kinds: list[int] = []
    values = {}
    for name, size in sizes.items():
        like = next((kind for kind in kinds if abs(size - kind) <= MEMORY_TOLERANCE * kind), None)
        if like is None:
            kinds.append(size)
        values[name] = format_bytes_binary(size if like is None else like)
    trait = Trait(
        key="memory", title="memory", of=lambda _: None, command="free -b; cat /sys/fs/cgroup/memory.max",
        effect="the smaller node runs out first",
    )  # fmt: skip
    return _node_difference(trait, values) if len(kinds) > 1 else None


def _variable_differences(nodes: Sequence[NodeFacts]) -> list[NodeDifference | None]:
    """Return the differences in variables of communication libraries."""
    names = {name for node in nodes for name in node.environment.variables if name.startswith(VARIABLE_PREFIXES)}
    return [
        _node_difference(
            Trait(
                key=f"variable {name}", title=name, of=lambda _: None, command=f"printenv {name}",
                effect="ranks take different ways through the libraries: slow, or a hang",
            ),
            {node.name: node.environment.variables.get(name, "not set") for node in nodes},
        )
        for name in sorted(names - _PER_NODE)
    ]  # fmt: skip


def clocks(nodes: Sequence[NodeFacts]) -> NodeDifference | None:
    """Report clocks that are further from the median clock than NTP leaves them and the measurement may be off by."""
    measured = ((node.name, node.clock_ns, node.clock_error_ns) for node in nodes)
    offsets = {name: (offset, error) for name, offset, error in measured if offset is not None and error is not None}
    if len(offsets) < 2:
        return None
    if len(offsets) == 2:
        a, b = offsets.values()
        apart_ns, error_ns = abs(a[0] - b[0]), a[1] + b[1]
        if apart_ns <= CLOCKS_APART_NS + error_ns:
            return None
        odd: tuple[str, ...] = ()
        middle = a[0]
    else:
        middle = round(median(offset for offset, _ in offsets.values()))
        far = {name for name, (offset, error) in offsets.items() if abs(offset - middle) > CLOCKS_APART_NS + error}
        if not far:
            return None
        odd = tuple(name for name in offsets if name in far) if 2 * len(far) < len(offsets) else ()
    return NodeDifference(
        key="clocks",
        title="clocks",
        values={name: _offset_text(offset - middle, error) for name, (offset, error) in offsets.items()},
        odd=odd,
        command="date --iso-8601=ns; chronyc tracking",
        effect="logs and traces of the nodes cannot be ordered",
    )


def _offset_text(offset_ns: int, error_ns: int) -> str:
    sign = "-" if offset_ns < 0 else "+"
    return f"{sign}{format_duration(abs(offset_ns))} ±{format_duration(error_ns)}"
