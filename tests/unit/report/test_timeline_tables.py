"""The bucket timeline as a table, as a picture, and the choice of a size."""

from __future__ import annotations

import pytest
from tests.tables import raws as column

from stepscope.predict.overlap import Transport
from stepscope.predict.run_buckets import advised
from stepscope.predict.timeline import best_bucket, step_timeline
from stepscope.records.nouns import Measured
from stepscope.records.plan import CommOp, ModelFacts, ParameterFact, Setting
from stepscope.records.prediction import BackwardProfile, BucketChoice, ReadyGradient, Timeline
from stepscope.report.views import buckets

MS = 1_000_000
NAMES = ("a", "b", "c", "d")


def profile() -> BackwardProfile:
    """20 ms before, 40 ms backward with a gradient every 10 ms, 20 ms after."""
    return BackwardProfile(
        clock="perf_counter", steps=3, micro_batch=8, data_wait_ns=0, forward_ns=20 * MS, earlier_backward_ns=0,
        backward_ns=40 * MS, optimizer_ns=20 * MS, other_ns=0,
        ready=tuple(ReadyGradient(name=n, ready_ns=10 * MS * (i + 1)) for i, n in enumerate(NAMES)),
    )  # fmt: skip


def op(*members: str, kib: int = 1024) -> CommOp:
    return CommOp(op="all_reduce", numel=kib * 256, dtype="float32", phase="backward", members=members)


def two_buckets() -> Timeline:
    """20 ms each on one lane: 20 to 40 under backward, 40 to 60 after it; a step of 100 ms."""
    plan = [op("a", "b"), op("c", "d")]
    return step_timeline(profile(), plan, lambda _, __: 20.0 * MS, transport=Transport(lanes=1))


def choice() -> BucketChoice:
    facts = ModelFacts(
        parameters=tuple(ParameterFact(name=n, numel=1 << 18, dtype="float32") for n in NAMES),
        ready_order=(0, 1, 2, 3),
        forward_flops_per_sample=1,
    )
    setting = Setting(device="cpu", backend="gloo", world_size=2, precision="fp32", optimizer="sgd")
    return best_bucket(
        profile(), facts, setting, lambda _, size: 2e6 + size / 2**20 * 1e7, candidates_mb=(0.5, 1, 2, 4)
    )


def test_every_bucket_has_a_row_with_its_times() -> None:
    table = buckets.timeline_table(two_buckets())
    assert column(table, "size") == [2**20, 2**20]
    assert column(table, "count") == [2, 2]
    assert column(table, "members") == ["a b", "c d"]
    assert column(table, "ready") == [20 * MS, 40 * MS]
    assert column(table, "start") == [20 * MS, 40 * MS]
    assert column(table, "end") == [40 * MS, 60 * MS]
    assert column(table, "exposed") == [0, 20 * MS]
    assert "step 100 ms = 20.0 ms before + backward 40.0 ms + exposed 20.0 ms + 20.0 ms after" in table.footnotes[0]
    assert "50% of 40.0 ms hidden" in table.footnotes[0]


def test_the_picture_draws_computation_above_and_buckets_below_to_scale() -> None:
    lines = buckets.timeline_picture(two_buckets(), width=112)
    margin = len(" 0 1.00 MiB") + 1
    assert lines[0][margin:].startswith("0 ")
    assert lines[0].endswith("100 ms")
    drawn = [line[margin:].ljust(100) for line in lines[1:4]]

    # 112 characters are 12 of label and 100 less one of line: a character is about a millisecond
    def spans(text: str, sign: str) -> tuple[int, int]:
        return text.index(sign), text.rindex(sign) + 1

    assert spans(drawn[0], "█") == (pytest.approx(20, abs=1), pytest.approx(60, abs=1))
    assert spans(drawn[1], "▒") == (pytest.approx(40, abs=1), pytest.approx(60, abs=1))
    assert "▓" not in drawn[1]
    assert spans(drawn[2], "▓") == (pytest.approx(60, abs=1), pytest.approx(80, abs=1))
    assert drawn[0][61:79].strip() == ""  # computation waits for the tail
    assert "▓ exposed" in lines[-1]


def test_a_queue_shows_in_the_picture() -> None:
    line = step_timeline(profile(), [op("a"), op("b")], lambda _, __: 20.0 * MS, transport=Transport(lanes=1))
    assert "··" in buckets.timeline_picture(line)[3]
    assert "··" not in buckets.timeline_picture(line)[2]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_line_of_a_picture_is_wider_than_asked(width: int) -> None:
    plan = [op(n) for n in NAMES]
    line = step_timeline(profile(), plan, lambda _, __: 3.0 * MS, transport=Transport(lanes=2))
    lines = buckets.timeline_picture(line, width=width)
    assert max(len(text) for text in lines[:-1]) <= width


def test_many_buckets_share_the_rows_of_their_lanes() -> None:
    names = [f"p{i}" for i in range(40)]
    many = BackwardProfile(
        clock="perf_counter", steps=3, micro_batch=8, data_wait_ns=0, forward_ns=20 * MS, earlier_backward_ns=0,
        backward_ns=40 * MS, optimizer_ns=MS, other_ns=0,
        ready=tuple(ReadyGradient(name=n, ready_ns=MS * (i + 1)) for i, n in enumerate(names)),
    )  # fmt: skip
    line = step_timeline(many, [op(n) for n in names], lambda _, __: 3.0 * MS, transport=Transport(lanes=2))
    labels = [text.split("  ")[0].strip() for text in buckets.timeline_picture(line)]
    assert labels[2:4] == ["lane 0", "lane 1"]
    assert len(labels) == 5


def test_the_choice_has_a_row_for_each_partition_and_the_untuned_ways() -> None:
    table = buckets.bucket_choice_table(choice())
    assert column(table, "bucket_cap") == ["0.5, 1 MiB", "2 MiB", "4 MiB", "ddp default", "naive"]
    assert column(table, "buckets")[:3] == [4, 2, 1]
    assert column(table, "gain")[-1] == 1.0
    starred = [row.values[0].text for row in table.rows if row.values[0].text.endswith("*")]
    assert starred == [f"{', '.join(f'{c:g}' for c in choice().chosen.bucket_caps_mb)} MiB *"]
    assert table.footnotes[0].startswith(f"* {choice().bucket_cap_mb:g} MiB: ")


def steps(by_way: dict[str, float]) -> dict[str, Measured]:
    return {way: Measured(value=value) for way, value in by_way.items()}


def test_measured_steps_stand_beside_the_predicted_ones_where_there_are_any() -> None:
    assert "measured" not in [c.key for c in buckets.bucket_choice_table(choice()).columns]
    table = buckets.bucket_choice_table(choice(), steps({"1": 70e6, "naive": 99e6}))
    assert column(table, "measured") == [70e6, None, None, None, 99e6]


def test_of_two_sizes_that_make_the_same_buckets_the_faster_run_is_shown() -> None:
    made = choice()
    row, alike = next((i, c.bucket_caps_mb) for i, c in enumerate(made.candidates) if len(c.bucket_caps_mb) > 1)
    measured = steps({f"{alike[0]:g}": 80e6, f"{alike[1]:g}": 70e6})
    shown = column(buckets.bucket_choice_table(made, measured, advised(made, measured)), "measured")
    assert shown[row] == advised(made, measured).step.value == 70e6


def test_what_was_measured_wins_over_the_model_and_its_error_is_told() -> None:
    made = choice()
    named = f"{made.bucket_cap_mb:g}"
    step = {f"{max(c.bucket_caps_mb):g}": c.timeline.step_ns for c in made.candidates}
    other = next(way for way in step if way != named)
    nothing = advised(made, steps({"naive": 1.0}))
    assert (nothing.way, nothing.measured, nothing.error) == (named, False, None)
    refuted = advised(made, steps({named: step[named] * 1.4, other: step[named] * 1.1}))
    assert (refuted.way, refuted.measured, refuted.ways) == (other, True, 2)
    assert refuted.refuted == step[named] * 1.4
    assert refuted.error == pytest.approx(max(1 - 1 / 1.4, abs(step[other] / (step[named] * 1.1) - 1)), rel=1e-6)
    default = advised(made, steps({named: step[named] * 1.4, "default": step[named]}))
    assert default.way == "default"
    agreed = advised(made, steps({named: step[named] * 1.02, other: step[other] * 1.02}))
    assert (agreed.way, agreed.refuted) == (named, None)
    table = buckets.bucket_choice_table(made, steps({named: step[named] * 1.4, other: step[named] * 1.1}), refuted)
    starred = [row.values[0].text for row in table.rows if row.values[0].text.endswith("*")]
    assert len(starred) == 1
    assert other in starred[0]


def test_a_size_that_was_not_run_is_advised_where_it_gains_more_than_the_model_errs() -> None:
    made = choice()
    named = f"{made.bucket_cap_mb:g}"
    other, worse = max(
        ((f"{max(c.bucket_caps_mb):g}", c.timeline.step_ns) for c in made.candidates), key=lambda pair: pair[1]
    )
    exact = advised(made, steps({other: worse}))
    assert (exact.way, exact.measured, exact.error) == (named, False, 0.0)
    wrong = advised(made, steps({other: worse * 0.8}))
    assert (wrong.way, wrong.measured) == (other, True), "the model is 25% off, more than it gains"
