"""Sweeps of collectives, NCCL's logs, link matrices, flight recorders, memory snapshots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench_evidence import environment
from tests.comm_rows import KIB, MIB, collective, row
from tests.comm_rows import sweep as comm_sweep
from tests.evidence import evidence
from tests.memory_pickles import alloc, dump, event, free, live, release, segment
from tests.nccl_log import Talk
from tests.wrong_advice import Case, case

from stepscope.core.errors import Unavailable
from stepscope.machine.topology import parse_topology
from stepscope.records.comm import CommRow
from stepscope.records.environment import NicFact
from stepscope.records.imported import MachineReading, Sign
from stepscope.records.nccl import FlightDump, FlightEntry, FlightGroup
from stepscope.results.evidence import Evidence, Source
from stepscope.results.open import load_evidence
from stepscope.traces.flight import compare_dumps

NVIDIA = {"device": "cuda", "backend": "nccl"}
MI = MIB


def _comm(*rows: CommRow, **more: Any) -> Evidence:
    return evidence(comm=rows, **more)


@case("busbw_drop")
def an_exchange_has_no_buckets(_: Path) -> Case:
    def drops(op: str) -> Evidence:
        shape = {"op": op, "reduce_op": "sum" if op == "all_reduce" else None, **NVIDIA}
        return _comm(*(collective(size, us, **shape) for size, us in ((MI, 500), (4 * MI, 1500), (16 * MI, 12_000))))

    return Case(
        right=drops("all_reduce"),
        wrong=drops("all_to_all"),
        advice="keep buckets below it",
        instead="messages in pieces",
    )


@case("nccl_algorithm")
def a_setting_that_loses_elsewhere_is_not_exported(_: Path) -> Case:
    ring = {"NCCL_ALGO": "Ring"}

    def measured(us: float, size: int, env: dict[str, str] | None = None) -> CommRow:
        return collective(size, us, env=env or {}, world_size=8, **NVIDIA)

    wins = (measured(400, 4 * MI), measured(300, 4 * MI, ring))
    return Case(
        right=_comm(*wins, measured(1000, 64 * MI), measured(1000, 64 * MI, ring)),
        wrong=_comm(*wins, measured(1000, 64 * MI), measured(1500, 64 * MI, ring)),
        advice="export NCCL_ALGO=Ring",
        instead="the same setting is slower than the default at 64 MiB 1.50x",
    )


@case("network_contention")
def loopback_shares_cores_and_no_network(_: Path) -> Case:
    def varies(**where: Any) -> Evidence:
        return _comm(collective(4 * MI, 10_000, world_size=4, time_ns_p90=3e7, time_ns_max=4e7, **where))

    return Case(
        right=varies(hosts=4), wrong=varies(hosts=1), advice="ask for nodes under one switch", instead="over a network"
    )


@case("noisy_collectives")
def ranks_with_cores_of_their_own_need_no_other_policy(_: Path) -> Case:
    def ordinary(cores: int) -> Evidence:
        rows = comm_sweep(scheduler_policy="SCHED_OTHER")
        return _comm(*rows, environment=environment(usable_cores=cores))

    return Case(right=ordinary(2), wrong=ordinary(64), advice="SCHED_BATCH", instead="widest interval")


@case("slow_link")
def nvidias_tools_are_not_there_for_gloo(_: Path) -> Case:
    def slow(**shape: Any) -> Evidence:
        shape |= {"world_size": 4, "hosts": 4, "link_peak_bytes_per_s": 125e6}
        return _comm(collective(KIB, 20, **shape), collective(1 << 30, 70e6, **shape))

    return Case(right=slow(**NVIDIA), wrong=slow(network="1gbit:4"), advice="nvidia-smi", instead="measure every pair")


@case("throttling")
def on_a_cpu_other_work_is_likelier_than_clocks(_: Path) -> Case:
    def product(device: str) -> Evidence:
        shape = {"kind": "matmul", "op": "matmul", "dtype": "bfloat16", "reduce_op": None, "world_size": 8}
        timed = {"size_bytes": 1 << 24, "time_ns_median": 1.2e6, "rank_spread": 0.25, "slowest_rank": 3}
        return _comm(row(**shape, **timed, device=device))

    return Case(
        right=product("cuda"),
        wrong=product("cpu"),
        advice="nvidia-smi -q",
        instead="check for other processes on its cores",
    )


@case("link_below_rate")
def geforce_cards_have_no_peers_by_design(_: Path) -> Case:
    def closed(model: str) -> Evidence:
        between = MachineReading(
            tool="p2pBandwidthLatencyTest", device="GPU 0 -> GPU 1", facts={"peer": "CANNOT", "model": model}
        )
        return evidence(readings=(between,))

    return Case(
        right=closed("NVIDIA RTX A6000"), wrong=closed("NVIDIA GeForce RTX 4090"), advice="ACS", instead="[info]"
    )


@case("device_fault")
def an_unused_ethernet_port_needs_no_cable(_: Path) -> Case:
    def ports(layer: str) -> Evidence:
        down = {"state": "Down", "physical state": "Polling", "link layer": layer}
        return evidence(
            readings=(
                MachineReading(
                    tool="ibstat", device="mlx5_0 port 1", facts={"state": "Active", "physical state": "LinkUp"}
                ),
                MachineReading(tool="ibstat", device="mlx5_1 port 1", facts=down),
            )
        )

    return Case(
        right=ports("InfiniBand"), wrong=ports("Ethernet"), advice="see the cable", instead="no port without signal"
    )


@case("wrong_results")
def nccls_protocols_are_nobody_elses(_: Path) -> Case:
    def wrong(**backend: str) -> Evidence:
        return _comm(collective(MI, 100, correct=False, status="error", **backend))

    return Case(right=wrong(**NVIDIA), wrong=wrong(), advice="NCCL_PROTO", instead="measure pairs of ranks")


@dataclass(frozen=True, kw_only=True)
class _SharedMemory(Talk):
    def link(self, channel: int, source: int, destination: int) -> list[str]:
        said = super().link(channel, source, destination)
        return [line.replace("P2P/CUMEM/read", "SHM/direct/direct") for line in said]


@dataclass(frozen=True, kw_only=True)
class _Sockets(Talk):
    def link(self, channel: int, source: int, destination: int) -> list[str]:
        said = super().link(channel, source, destination)
        return [line.replace("NET/IB", "NET/Socket").replace("/GDRDMA", "") for line in said]


def _logged(folder: Path, name: str, talk: Talk, *more: str) -> Evidence:
    lines = [line for rank in range(talk.nranks) for line in talk.rank_lines(rank)]
    path = folder / name
    path.write_text("\n".join([*more, *lines]) + "\n")
    return load_evidence([path])


@case("nccl_connections")
def a_level_that_allows_p2p_is_not_unset(tmp_path: Path) -> Case:
    talk = _SharedMemory(nranks=2, per_host=2)

    def level(value: str) -> Evidence:
        said = talk.say(0, f"NCCL_P2P_LEVEL set by environment to {value}")
        return _logged(tmp_path, f"{value}.log", talk, said)

    return Case(
        right=level("LOC"), wrong=level("SYS"), advice="unset NCCL_P2P_LEVEL", instead="check what prevents P2P"
    )


@case("nccl_net_plugin")
def where_ethernet_is_all_there_is_sockets_are_right(tmp_path: Path) -> Case:
    logged = _logged(tmp_path, "sockets.log", _Sockets(nranks=2, per_host=1))
    ethernet = NicFact(name="eth0", kind="ethernet", speed_bits_per_s=10**10, up=True, addresses=("10.0.0.1",))
    return Case(
        right=logged,
        wrong=replace(logged, environment=environment(host="alpha", nics=(ethernet,))),
        advice="load its plugin",
        instead="sockets are right there",
    )


@case("nccl_old_version")
def a_bug_of_other_gpus_is_no_concern(tmp_path: Path) -> Case:
    logged = _logged(tmp_path, "old.log", Talk(version="2.18.1+cuda12.1"))
    return Case(
        right=replace(logged, hardware=("8 x NVIDIA H100 80GB HBM3",)),
        wrong=replace(logged, hardware=("8 x NVIDIA L40S",)),
        advice="update NCCL",
        instead="its listed bugs concern other GPUs",
    )


@case("nccl_old_version")
def a_bug_between_hosts_is_none_within_one(tmp_path: Path) -> Case:
    return Case(
        right=_logged(tmp_path, "two.log", Talk(version="2.10.3+cuda11.4", modern=False)),
        wrong=_logged(tmp_path, "one.log", Talk(version="2.10.3+cuda11.4", modern=False, per_host=4)),
        advice="update NCCL",
        instead="or jobs on several hosts",
    )


@case("socket_crossing")
def gpus_that_the_job_does_not_use(_: Path) -> Case:
    matrix = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      PIX     SYS     SYS     0-7
GPU1    PIX      X      SYS     SYS     0-7
GPU2    SYS     SYS      X      PIX     8-15
GPU3    SYS     SYS     PIX      X      8-15
"""
    topology = parse_topology(matrix)
    assert not isinstance(topology, Unavailable)

    def using(devices: str) -> Evidence:
        variables = {"CUDA_VISIBLE_DEVICES": devices}
        return evidence(topology=topology, environment=environment(variables=variables))

    return Case(right=using("0,1,2"), wrong=using("0,1"), advice="stay on one side", instead="the job uses GPU0, GPU1")


def _dump(rank: int, *calls: int, ranks: int = 4) -> FlightDump:
    """all_reduces of so many elements, the last of which waits; one call fewer is a rank that never came."""
    entries = tuple(
        FlightEntry(
            record_id=n, group="0", sequence=n + 1, op="all_reduce", name="nccl:all_reduce", input_sizes=((size,),),
            input_dtypes=("float32",), output_sizes=((size,),), output_dtypes=("float32",),
            state="started" if n == 2 else "completed",
        )
        for n, size in enumerate(calls)
    )  # fmt: skip
    group = FlightGroup(name="0", description="default_pg", ranks=tuple(range(ranks)), last_enqueued=len(calls))
    return FlightDump(rank=rank, entries=entries, groups=(group,), kept="all", world_size=ranks)


def _recorded(*dumps: FlightDump) -> Evidence:
    source = Source(path=Path("dumps"), kind="imported", format="flight_recorder")
    return Evidence(sources=(source,), flight=compare_dumps(dumps))


@case("collective_mismatch")
def of_two_equal_sides_either_may_be_wrong(_: Path) -> Case:
    usual, odd = (8, 8, 8), (8, 8, 9)
    return Case(
        right=_recorded(*(_dump(r, *(odd if r == 3 else usual)) for r in range(4))),
        wrong=_recorded(*(_dump(r, *(odd if r > 1 else usual)) for r in range(4))),
        advice="certain: both calls are recorded\n",
        instead="either may be the wrong one",
    )


def _waited(rank: int, number: int = 3) -> Sign:
    """What the watchdog says of a rank in all_reduce ``number`` of 8 floats."""
    values = {"member": f"{rank}", "sequence": f"{number}", "op": "ALLREDUCE", "elements": "8"}
    times = {"timeout": "600000", "ran": "600011"}
    return Sign(kind="timeout", source="job.log", line=rank + 1, text="", rank=rank, values={**values, **times})


def _status(rank: int, enqueued: int) -> Sign:
    values = {"group": "0", "name": "default_pg", "enqueued": f"{enqueued}", "completed": "2"}
    at = {"at": "3"} if enqueued > 2 else {}
    return Sign(kind="group-status", source="job.log", line=9, text="", rank=rank, values={**values, **at})


@case("hang_in_log")
def a_log_alone_does_not_prove_who_was_missing(_: Path) -> Case:
    waited = tuple(_waited(rank) for rank in (0, 1, 3))
    return Case(
        right=Evidence(sources=(), signs=(*waited, _status(0, 4), _status(2, 2))),
        wrong=Evidence(sources=(), signs=waited),
        advice="rank 2 never entered",
        instead="who did not come to collective 3 is not in them",
    )


def _loop(folder: Path, name: str, *, settings: dict[str, Any] | None = None, last: Any = None) -> Evidence:
    """A settled loop of 500 requests, twelve of which go to the driver after the cache was given back."""
    trace = [e for n in range(500) for e in (event("segment_alloc", 20 * MI), alloc(n, MI))]
    for n in range(500):
        if n < 12:
            trace += [event("segment_free", 20 * MI), event("segment_alloc", 20 * MI)]
        trace += [alloc(10_000 + n, MI), *release(10_000 + n, MI)]
    trace += [] if last is None else [last]
    return load_evidence(
        [dump(folder / f"{name}.pickle", [segment(live(MI), free(19 * MI))], trace, settings=settings)]
    )


@case("allocator_pressure")
def segments_that_grow_already_are_not_told_to(tmp_path: Path) -> Case:
    return Case(
        right=_loop(tmp_path, "fixed"),
        wrong=_loop(tmp_path, "growing", settings={"expandable_segments": True}),
        advice="expandable_segments:True",
        instead="make sizes repeat",
    )


@case("allocator_pressure")
def a_memory_that_is_full_is_not_emptied_by_the_user(tmp_path: Path) -> Case:
    return Case(
        right=_loop(tmp_path, "loop"),
        wrong=_loop(tmp_path, "full", last=event("oom", 50 * MI, device_free=MI)),
        advice="empty_cache()",
        instead="1 request failed beside it: the memory is full",
    )


@case("fragmentation")
def pieces_that_the_peak_filled_are_not_unusable(tmp_path: Path) -> Case:
    """Between steps 40% of the pool are free; at the peak the step used all of it."""
    pool = [segment(free(8 * MI), live(12 * MI, at=n)) for n in range(100)]

    def between(name: str, tensors: int) -> Evidence:
        trace = [e for n in range(100) for e in (event("segment_alloc", 20 * MI), alloc(n, 12 * MI))]
        trace += [alloc(1000 + n, 8 * MI) for n in range(tensors)]
        trace += [e for n in range(tensors) for e in release(1000 + n, 8 * MI)]
        return load_evidence([dump(tmp_path / f"{name}.pickle", pool, trace)])

    return Case(
        right=between("idle", 0), wrong=between("used", 100), advice="unusable pieces", instead="but the peak used"
    )
