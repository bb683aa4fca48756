from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from tests.tables import at as _cell
from tests.tables import raws as _column
from tests.trace_builder import Job, build, write_job

from stepscope.records.trace_budget import Parts, RankBudget, StepUtilisation, Utilisation
from stepscope.records.trace_collectives import BucketRow, ConformanceCheck
from stepscope.records.trace_path import CriticalPath, CrossRankPath, PathContributor, PathParts, RankShare
from stepscope.records.trace_quality import QualityFact
from stepscope.records.trace_summary import Missing, RankFacts, RankPass, TraceSummary
from stepscope.records.trace_work import (
    CopyRow,
    CopyTable,
    DeviceMemory,
    KernelRow,
    KernelTable,
    LaunchStatistics,
    MemoryPeak,
    OperatorRow,
    OperatorTable,
    SequenceRow,
    StepMemory,
)
from stepscope.report import trace_sections
from stepscope.report.render import terminal
from stepscope.report.shared.traces import MANY, NOTHING, PARTIAL, most
from stepscope.report.table import Column, Table
from stepscope.report.views.trace_budget import budget_charts, overlap_efficiency
from stepscope.results.evidence import TraceEvidence
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import Wanted

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "traces"
MINE = (
    "overlap", "collectives", "stragglers", "buckets", "units", "operators", "kernels", "launches", "copies",
    "annotations", "sequences", "memory", "utilisation", "path", "conformance",
)  # fmt: skip
WIDTHS = (100, 120)
LATE = 6


def _table(section: str, summary: TraceSummary) -> Table:
    return trace_sections.table(summary, section)


def _analysed(folder: Path, **plan: Any) -> tuple[Job, TraceSummary]:
    job = build(**plan)
    written = write_job(job, folder)
    return job, analyse_job([written], Wanted(sections=frozenset(trace_sections.SECTIONS)))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, TraceSummary]:
    """Eight ranks of which one launches late in every step."""
    return _analysed(
        tmp_path_factory.mktemp("job"),
        world=8,
        steps=3,
        late={LATE: 300_000},
        late_kind="launch",
        sync=True,
        memory=True,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> TraceSummary:
    """One rank's trace of a job of two."""
    folder = tmp_path_factory.mktemp("alone")
    written = write_job(build(world=2, steps=3), folder)
    first = sorted(Path(written).iterdir())[0]
    return analyse_job([first], Wanted(sections=frozenset(trace_sections.SECTIONS)))


def _pass(rank: int, **fields: Any) -> RankPass:
    """A rank that has a budget, and what is given."""
    facts = RankFacts(
        rank=rank, file=f"rank-{rank}.json", size_bytes=1, event_count=1, world_size=2, backend="nccl",
        device_name=None, host=None,
    )  # fmt: skip
    return RankPass(facts=facts, notes=(), **{"budget": None, **fields})


def _summary(*ranks: RankPass, **fields: Any) -> TraceSummary:
    return TraceSummary(world_size=None, ranks=ranks, verdicts=(), notes=(), **fields)


def _parts(*, compute: int, comm: int, overlap: int) -> Parts:
    return Parts(
        window_ns=1000, compute_ns=compute, comm_ns=comm, memory_ns=0, overlap_ns=overlap,
        exposed_comm_ns=comm - overlap, exposed_memory_ns=0, busy_ns=compute + comm - overlap,
        idle_ns=1000 - compute - comm + overlap,
    )  # fmt: skip


# All sections


@pytest.mark.parametrize("section", MINE)
def test_a_section_has_rows_or_says_why_not(section: str, job: Any, alone: TraceSummary) -> None:
    for summary in (job[1], alone, _summary(_pass(0), _pass(1)), _summary(_pass(0, partial=True))):
        table = _table(section, summary)
        assert table.key == section
        assert table.rows or table.footnotes or table.notes
        assert {len(row.values) for row in table.rows} <= {len(table.columns)}
        for width in WIDTHS:
            assert max(map(cell_len, terminal.render(table, width=width).plain.splitlines())) <= width


def test_a_table_without_rows_is_shown_as_its_notes() -> None:
    table = Table(key="k", title="K", columns=(Column("a", "A", str),), rows=(), notes=("nothing here",))
    assert terminal.render(table, width=80).plain == "! nothing here"


def test_an_empty_trace_says_that_there_is_nothing_to_measure() -> None:
    summary = _summary(_pass(0), _pass(1))
    for section in ("overlap", "operators", "kernels", "copies", "memory", "path"):
        assert _table(section, summary).notes == (NOTHING,)


def test_a_recorded_reason_is_told_with_the_ranks_it_holds_for(alone: TraceSummary) -> None:
    known = alone.ranks[0]
    budget = known.budget
    why = (Missing(section="kernels", reason="the profiler was off"),)
    others = [_pass(r, budget=budget, unavailable=why) for r in (1, 2, 3, 7)]
    assert _table("kernels", _summary(known, *others)).notes == ("ranks 1-3, 7: the profiler was off",)
    assert _table("kernels", _summary(*others)).notes == ("the profiler was off",)
    scanned = _pass(1, budget=budget, partial=True)
    assert _table("kernels", _summary(known, scanned)).notes == (f"rank 1: {PARTIAL}",)


@pytest.mark.parametrize(
    ("values", "text", "raw"),
    [
        ({0: 10, 1: 10, 2: 10, 3: 30}, "rank 3 3.0x", 3),
        ({0: 10, 1: 10, 2: 10, 3: 10}, "even", 0),
        ({2: 10}, "rank 2 only", 2),
        ({1: 10, 2: 30}, "on 2 of 4", 2),
    ],
)
def test_the_rank_with_most_is_named_where_it_stands_out(values: dict[int, float], text: str, raw: int) -> None:
    value = most(values, [0, 1, 2, 3])
    assert (value.text, value.raw) == (text, raw)
    assert most({0: 10}, [0]).raw is None, "one rank is compared with nobody"


# Overlap


@pytest.mark.parametrize(
    ("parts", "efficiency"),
    [
        (_parts(compute=500, comm=0, overlap=0), None),
        (_parts(compute=500, comm=200, overlap=200), 1.0),
        (_parts(compute=500, comm=200, overlap=50), 0.25),
        (_parts(compute=100, comm=400, overlap=100), 1.0),
        (_parts(compute=0, comm=200, overlap=0), 0.0),
    ],
)
def test_overlap_efficiency_is_the_hidden_share_of_the_shorter(parts: Parts, efficiency: float | None) -> None:
    assert overlap_efficiency(parts) == efficiency


def test_overlap_shows_the_capture_and_every_step_of_every_rank(job: Any) -> None:
    built, summary = job
    table = _table("overlap", summary)
    assert _column(table, "rank") == list(range(8)) * 4
    assert _column(table, "step") == ["all"] * 8 + [10] * 8 + [11] * 8 + [12] * 8
    for row in range(8):
        truth = built.truth[row]
        assert _cell(table, "exposed", row).raw == truth.exposed_comm_ns
        assert _cell(table, "hidden", row).raw == truth.comm_ns - truth.exposed_comm_ns
    assert "mm_backward" in str(_cell(table, "hidden_under").raw)


def test_a_rank_without_communication_is_a_note_and_no_row_of_zeros(alone: TraceSummary) -> None:
    silent = replace(
        alone.ranks[0].budget,
        parts=_parts(compute=500, comm=0, overlap=0),  # type: ignore[type-var]
    )
    table = _table("overlap", _summary(alone.ranks[0], _pass(1, budget=silent)))
    assert set(_column(table, "rank")) == {0}
    assert table.notes == ("rank 1: no communication in this trace: nothing to overlap",)


@pytest.mark.parametrize("matters", [True, False])
def test_kernels_of_unknown_kind_have_a_column_and_a_part_where_they_matter(alone: TraceSummary, matters: bool) -> None:
    budget = alone.ranks[0].budget
    assert budget is not None
    fact = QualityFact(kind="unknown-kernels", time_ns=200, matters=matters)
    parts = _parts(compute=500, comm=100, overlap=0)
    ranks = [_pass(r, budget=replace(budget, parts=parts), quality=(fact,) if r else ()) for r in range(2)]
    table = _table("budget", _summary(*ranks))
    keys = [column.key for column in table.columns]
    assert ("unknown" in keys) is matters
    assert _column(table, "compute") == [500, 300 if matters else 500]
    assert any("unknown" in note for note in table.footnotes) is matters
    if matters:
        assert _column(table, "unknown") == [0, 200]
    (chart,) = budget_charts([TraceEvidence(name="t", summary=_summary(*ranks))])
    assert ("of unknown kind" in chart.caption) is matters


def test_of_many_ranks_those_with_most_exposed_communication_come_first(alone: TraceSummary) -> None:
    budget = alone.ranks[0].budget
    assert budget is not None
    ranks = [
        _pass(r, budget=replace(budget, parts=_parts(compute=300, comm=300, overlap=300 - r))) for r in range(MANY + 1)
    ]
    table = _table("overlap", _summary(*ranks))
    assert _column(table, "rank") == list(range(MANY, -1, -1))
    assert any(f"{MANY + 1} ranks" in text for text in table.footnotes)


# Collectives


def test_collectives_are_split_into_transfer_and_waiting(job: Any) -> None:
    built, summary = job
    table = _table("collectives", summary)
    planted = built.collectives
    assert len(table.rows) == 1
    assert _cell(table, "op").raw == "all_reduce"
    assert _cell(table, "count").raw == len(planted)
    assert _cell(table, "transfer").raw == pytest.approx(built.plan.transfer_ns, rel=0.01)
    waited = sum(c.waiting_ns(r) for c in planted for r in range(8)) / 8
    assert _cell(table, "waiting").raw == pytest.approx(waited, rel=0.01)
    assert _cell(table, "last_rank").raw == LATE
    assert "clock" in " ".join(table.footnotes)


def test_bus_bandwidth_is_bytes_of_all_instances_over_their_time(job: Any) -> None:
    built, summary = job
    table = _table("collectives", summary)
    moved = sum(c.size_bytes for c in built.collectives) * 2 * 7 / 8
    seconds = sum(c.transfer_ns for c in built.collectives) / 1e9
    assert _cell(table, "busbw").raw == pytest.approx(moved / seconds, rel=0.01)
    assert "≥" not in _cell(table, "busbw").text


def test_sure_matches_are_a_footnote_and_unsure_ones_a_column(job: Any) -> None:
    summary = job[1]
    collectives = summary.collectives
    unsure = replace(collectives, instances=tuple(replace(m, match_confidence=0.5) for m in collectives.instances))
    keys = [c.key for c in _table("collectives", summary).columns]
    assert "confidence" not in keys
    assert _column(_table("collectives", replace(summary, collectives=unsure)), "confidence") == [0.5]


def test_chosen_ranks_alone_count_for_waiting_and_exposed(job: Any) -> None:
    built, summary = job
    table = _table("collectives", replace(summary, ranks=(summary.ranks[LATE],)))
    assert _cell(table, "waiting").raw == sum(c.waiting_ns(LATE) for c in built.collectives)
    assert _cell(table, "last_rank").raw == LATE


def test_one_ranks_collectives_are_not_split_and_say_so(alone: TraceSummary) -> None:
    table = _table("collectives", alone)
    assert "waiting" not in [c.key for c in table.columns]
    assert "cannot separate waiting" in table.footnotes[0]
    assert _cell(table, "busbw").text.startswith("≥ ")
    communication = alone.ranks[0].communication
    assert communication is not None
    assert sum(_column(table, "total")) == sum(c.duration_ns for c in communication.collectives)


def test_collectives_that_ranks_do_not_leave_together_say_why_they_are_not_split(tmp_path: Path) -> None:
    _, summary = _analysed(tmp_path, shape="pipeline", world=2, steps=2)
    table = _table("collectives", summary)
    assert _column(table, "waiting") == [None] * len(table.rows)
    assert any("not split" in note for note in table.notes)


# Stragglers


def test_a_straggler_is_shown_with_its_certainty_cause_and_worth(job: Any) -> None:
    _, summary = job
    table = _table("stragglers", summary)
    assert _column(table, "rank") == [LATE]
    found = summary.stragglers.stragglers[0]
    assert _cell(table, "confidence").raw == found.p_value
    assert _cell(table, "cause").raw == found.cause
    assert "peers" in _cell(table, "cause").text
    assert _cell(table, "saved").raw == found.saved_ns
    assert f"rank {LATE} least" in " ".join(table.footnotes)


# Buckets


def _bucket(rank: int, step: int, index: int, *, start: int, exposed: int, **fields: Any) -> BucketRow:
    return BucketRow(**{
        "rank": rank, "step": step, "index": index, "wrapper": "ddp", "op": "all_reduce", "dtype": "float32",
        "size_bytes": 25 << 20, "members": ("[10, 10]", "[10]"), "members_source": "copies", "members_unavailable": None,
        "ready_ns": start - 10, "launch_ns": start - 5, "start_ns": start, "end_ns": start + 100, "waited_ns": 5,
        "exposed_ns": exposed, **fields,
    })  # fmt: skip


def test_buckets_are_medians_over_steps_and_ranks_from_the_first_ready_one() -> None:
    buckets = tuple(
        b
        for step in (1, 2, 3)
        for b in (
            _bucket(0, step, 0, start=1000 * step, exposed=0),
            _bucket(0, step, 1, start=1000 * step + 200 + step, exposed=100),
        )
    )
    table = _table("buckets", _summary(_pass(0, buckets=buckets)))
    assert _column(table, "bucket") == [0, 1]
    assert _column(table, "ready") == [0, 202]
    assert _column(table, "end") == [110, 312]
    assert _column(table, "members") == [2, 2]
    assert _column(table, "exposed") == [0, 100]
    assert _cell(table, "exposed", 1).text.endswith("100%")
    assert _cell(table, "size").text == "25.0 MiB"


def test_buckets_that_change_between_steps_are_kept_apart_and_noted() -> None:
    buckets = (
        _bucket(0, 1, 0, start=1000, exposed=0),
        _bucket(0, 2, 0, start=2000, exposed=0, size_bytes=1 << 20, members=None, members_unavailable="no shapes"),
    )
    table = _table("buckets", _summary(_pass(0, buckets=buckets)))
    assert _column(table, "size") == [25 << 20, 1 << 20]
    assert any("partition" in note for note in table.notes)
    assert any("no shapes" in note for note in table.notes)


# Operators, kernels, launches, copies


def _operator(rank: int, name: str, *, device: int, host: int, flop: int | None = None) -> OperatorRow:
    return OperatorRow(
        rank=rank, name=name, shapes=None, calls=2, host_total_ns=host, host_self_ns=host, device_total_ns=device,
        device_self_ns=device, device_events=2, flop=flop,
    )  # fmt: skip


def _operators(rank: int, *rows: OperatorRow, unlinked: int = 0) -> RankPass:
    table = OperatorTable(
        rank=rank, rows=rows, host_ns=sum(r.host_self_ns for r in rows),
        device_ns=sum(r.device_self_ns for r in rows) + unlinked, outside_ns=0, unlinked_ns=unlinked, left_out_rows=0,
        left_out_host_self_ns=0, left_out_device_self_ns=0, flop_source="shapes", flop_unavailable=None,
    )  # fmt: skip
    return _pass(rank, operators=table)


def test_operators_of_several_ranks_are_medians_and_name_the_rank_with_most() -> None:
    ranks = [
        _operators(
            r, _operator(r, "aten::mm", device=t, host=10, flop=1000), _operator(r, "aten::add", device=5, host=9)
        )
        for r, t in enumerate((100, 100, 300))
    ]
    table = _table("operators", _summary(*ranks))
    assert _column(table, "operator") == ["aten::mm", "aten::add"]
    assert _column(table, "device_self") == [100, 5]
    assert _cell(table, "device_self").text.split()[-1] == f"{500 / 515:.0%}"
    assert _cell(table, "largest_rank").text == "rank 2 3.0x"
    assert _cell(table, "flops").raw == pytest.approx(3000 / 500e-9)


def test_merged_operators_keep_the_order_that_was_asked_for() -> None:
    rows = lambda r: (_operator(r, "b", device=1, host=90), _operator(r, "a", device=50, host=10))  # noqa: E731
    table = _table("operators", _summary(*(_operators(r, *rows(r)) for r in (0, 1))))
    assert _column(table, "operator") == ["b", "a"]


def test_a_cpu_trace_has_no_columns_of_device_time() -> None:
    table = _table("operators", _summary(_operators(0, _operator(0, "aten::mm", device=0, host=10))))
    assert _column(table, "device_self") == [None]
    assert "device" not in terminal.render(table, width=100).plain


def _kernels(rank: int, **times: int) -> RankPass:
    total = sum(times.values())
    rows = tuple(
        KernelRow(
            rank=rank, name=name, work="compute", tensor_cores=None, calls=1, total_ns=ns, min_ns=ns, max_ns=ns, mean_ns=ns,
            median_ns=ns, share=ns / total,
        )
        for name, ns in times.items()
    )  # fmt: skip
    return _pass(
        rank,
        kernels=KernelTable(
            rank=rank, rows=rows, total_ns=total, left_out_names=0, left_out_calls=0, left_out_ns=0,
            tensor_core_share=0.0, other_share=0.0, unknown_share=1.0,
        ),
    )  # fmt: skip


def test_kernels_keep_their_full_name_beside_the_short_one() -> None:
    long = "void at::native::reduce_kernel<512, 1, ReduceOp<float> >(ReduceOp<float>)"
    table = _table("kernels", _summary(_kernels(0, **{long: 10, "gemm": 30})))
    assert _column(table, "kernel") == ["gemm", long]
    assert _cell(table, "kernel", 1).text == "reduce_kernel<512, 1, ReduceOp<float>>"
    assert any("shortened" in text for text in table.footnotes)


def test_a_kernel_of_some_ranks_says_on_how_many_it_ran() -> None:
    ranks = [_kernels(0, gemm=10, extra=5), _kernels(1, gemm=10, extra=5), _kernels(2, gemm=10)]
    table = _table("kernels", _summary(*ranks))
    assert [_cell(table, "largest_rank", row).text for row in (0, 1)] == ["even", "on 2 of 3"]
    assert _cell(table, "total", 1).raw == 5


def test_launches_that_cannot_be_known_say_why() -> None:
    stats = LaunchStatistics(
        rank=0, launched=0, unlinked=9, early=0, delay=None, call=None, short_count=0, short_ns=0, short_call_ns=0,
        late_count=0, late_share=None, launches_per_s=None, queue=None, unavailable="no launches recorded",
    )  # fmt: skip
    table = _table("launches", _summary(_pass(0, launches=stats, budget=_some_budget())))
    assert table.rows == ()
    assert table.notes == ("no launches recorded",)


def _some_budget() -> RankBudget:
    parts = _parts(compute=500, comm=0, overlap=0)
    return RankBudget(rank=0, source="device", start_ns=0, parts=parts, event_count=1)


def _copy(rank: int, *, size: int | None, rate: float | None, memory: str = "pinned") -> CopyRow:
    return CopyRow(
        rank=rank, kind="HtoD", memory=memory, calls=1, total_ns=10, busy_ns=10, exposed_ns=10, sized_calls=1,
        size_bytes=size, bytes_per_s=rate, largest_bytes=size, median_bytes=size,
    )  # fmt: skip


def test_the_rate_of_copies_is_bytes_over_time_and_no_mean_of_rates() -> None:
    ranks = [
        _pass(r, budget=_some_budget(), copies=CopyTable(rank=r, rows=(row,), busy_ns=10, exposed_ns=10))
        for r, row in enumerate((_copy(0, size=900, rate=9.0), _copy(1, size=100, rate=100.0)))
    ]
    assert _cell(_table("copies", _summary(*ranks)), "rate").raw == pytest.approx(1000 / 101)


# Sequences


def _sequence(*kernels: str, total: int, rank: int = 0) -> SequenceRow:
    return SequenceRow(rank=rank, kernels=kernels, count=3, total_ns=total, gap_ns=10, mean_ns=total / 3, share=0.1)


def test_a_cycle_of_kernels_is_shown_once() -> None:
    rows = (
        _sequence("a", "b", "c", total=90),
        _sequence("b", "c", "a", total=80),
        _sequence("a", "b", "c", "a", "b", "c", total=70),
        _sequence("a", "c", "b", total=60),
    )
    table = _table("sequences", _summary(_pass(0, sequences=rows)))
    assert _column(table, "kernels") == ["a → b → c", "a → c → b"]


def test_a_kernel_that_repeats_is_said_once_with_its_count() -> None:
    table = _table("sequences", _summary(_pass(0, sequences=(_sequence("a", "a", "b", total=9),))))
    assert _cell(table, "kernels").text.replace("\u00a0", " ") == "a x2 → b"


# Memory, utilisation


def test_memory_shows_the_peak_with_what_was_going_on_then(alone: TraceSummary) -> None:
    memory = DeviceMemory(
        rank=0, device_type="gpu", device=0, from_capture_start=False,
        peak=MemoryPeak(
            time_ns=5, allocated_bytes=3 << 30, reserved_bytes=4 << 30, step=11, phase="backward", annotations=(),
            operator="aten::mm",
        ),
        peak_reserved_bytes=4 << 30, slack_bytes=1 << 30, allocations=7, releases=6, requested_bytes=9 << 30,
        growth_bytes=1 << 20, times_ns=(0,), allocated_bytes=(1,), reserved_bytes=None,
        steps=(StepMemory(step=11, peak_bytes=3 << 30, end_bytes=5), StepMemory(step=99, peak_bytes=1, end_bytes=1)),
    )  # fmt: skip
    table = _table("memory", _summary(replace(alone.ranks[0], memory=(memory,))))
    assert _column(table, "step") == ["all", 11]
    assert _column(table, "peak") == [3 << 30, 3 << 30]
    assert _cell(table, "during").text == "step 11, backward, aten::mm"
    assert _cell(table, "end").text == "+1.00 MiB"
    assert _cell(table, "reserved", 1).raw is None


def _used(rank: int, **fields: Any) -> Utilisation:
    return Utilisation(**{
        "rank": rank, "device_name": "H100", "dtype": "bf16", "dtype_source": "kernels", "peak_flops_per_s": 1e15,
        "peak_source": "datasheet", "devices": 1, "model_flop": 4e8, "hardware_flop": None, "flop_source": "given",
        "flop_incomplete": (), "step_ns": 1e3, "mfu": 0.4, "hfu": None,
        "steps": (StepUtilisation(step=1, step_ns=1000, mfu=0.4, hfu=None),), "formula": "FLOP / time", "unavailable": None,
        "error": None, **fields,
    })  # fmt: skip


def test_utilisation_shows_what_was_reached_and_of_which_peak() -> None:
    table = _table("utilisation", _summary(_pass(0, utilisation=_used(0))))
    assert _cell(table, "mfu").text == "40.0%"
    assert _cell(table, "rate").raw == pytest.approx(4e14)
    assert "FLOP as given; peak: datasheet" in table.footnotes


def test_without_a_peak_the_rate_and_the_reason_are_shown_and_no_zero() -> None:
    unknown = _used(0, mfu=None, peak_flops_per_s=None, unavailable="peak unknown: 'X' is not in the table")
    table = _table("utilisation", _summary(_pass(0, utilisation=unknown)))
    assert [(row.values[0].raw, row.values[1].raw) for row in table.rows] == [(0, "median")]
    assert _cell(table, "rate").raw == pytest.approx(4e14)
    assert [_cell(table, key).raw for key in ("mfu", "hfu", "peak")] == [None, None, None]
    assert table.notes == ("peak unknown: 'X' is not in the table",)


def test_a_utilisation_above_one_is_an_error_in_red() -> None:
    table = _table("utilisation", _summary(_pass(0, utilisation=_used(0, mfu=1.5, error="MFU above 1"))))
    assert _cell(table, "mfu").tone == "bad"
    assert "MFU above 1" in table.notes


# Path and plan


def _path(rank: int, **parts: int) -> CriticalPath:
    known = PathParts(**parts)
    contributors = (PathContributor(part="compute", name="gemm", total_ns=parts.get("compute_ns", 0), share=0.5),)
    return CriticalPath(
        rank=rank, start_ns=0, end_ns=known.total_ns, source="device", parts=known, contributors=contributors, switches=2,
        inferred=1,
    )  # fmt: skip


def test_one_ranks_path_lists_its_parts_with_what_takes_most_of_them() -> None:
    table = _table("path", _summary(_pass(0, path=_path(0, compute_ns=60, host_operator_ns=40))))
    assert _column(table, "part") == ["compute", "compute", "host_operator"]
    assert _column(table, "name") == ["all", "gemm", "all"]
    whole = [row for row, name in enumerate(_column(table, "name")) if name == "all"]
    assert sum(_column(table, "share")[row] for row in whole) == pytest.approx(1.0)


def test_several_ranks_paths_stand_below_the_path_across_them() -> None:
    across = CrossRankPath(
        end_rank=1, total_ns=100, transfer_ns=20,
        ranks=(RankShare(rank=0, parts=PathParts(compute_ns=50)), RankShare(rank=1, parts=PathParts(host_other_ns=30))),
        collectives=3, unmatched=1, hops=2,
    )  # fmt: skip
    ranks = [_pass(r, path=_path(r, compute_ns=60, host_operator_ns=40)) for r in (0, 1)]
    table = _table("path", _summary(*ranks, path=across))
    assert _column(table, "path") == ["all", "on 0", "on 1", 0, 1]
    parts = ("compute", "communication", "memory", "host_operator", "host_runtime", "host_other", "launch_latency")
    assert sum(_cell(table, part).raw for part in (*parts, "device_gap")) == 100
    assert _cell(table, "communication").raw == 20
    assert any("without a match" in text for text in table.footnotes)


def _check(rank: int, **fields: Any) -> ConformanceCheck:
    return ConformanceCheck(**{
        "rank": rank, "strategy": "ddp", "steps": 3, "planned_per_step": 2, "launched_in_backward": 6,
        "overlap_planned": True, "holds": True, "differences": (), "certain": False, **fields,
    })  # fmt: skip


def test_ranks_with_the_same_outcome_share_a_row() -> None:
    bad = {"holds": False, "certain": True, "differences": ("step 1: missing 1 x all_reduce of 4 bytes",)}
    ranks = [_pass(r, conformance=_check(r, **(bad if r in (2, 3) else {}))) for r in range(5)]
    table = _table("conformance", _summary(*ranks))
    assert _column(table, "ranks") == ["0-1, 4", "2-3"]
    assert _column(table, "holds") == [True, False]
    assert table.notes == ("ranks 2-3: step 1: missing 1 x all_reduce of 4 bytes",)


# Real traces


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(
    "name", ["dlrm-v100-8rank", "nccl-meta-a100-rank0of2", "sampled-2of128", "edge-cpu-gloo-rank34of300"]
)
def test_real_traces_read_well_at_common_widths(name: str) -> None:
    summary = analyse_job([SHARED / name], Wanted(sections=frozenset(trace_sections.SECTIONS)))
    for section in MINE:
        table = _table(section, summary)
        assert table.rows or table.footnotes or table.notes
        for width in WIDTHS:
            assert max(map(cell_len, terminal.render(table, width=width).plain.splitlines())) <= width, section
