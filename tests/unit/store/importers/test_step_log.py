"""An importer of one more job log is one file of declarations: a made-up format, read by the builder."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.importers import detect, read_foreign
from stepscope.store.step_log import step_log

WIDGET = step_log(
    "widget_log",
    title="log of Widget",
    step=r"\bit (?P<step>\d+) \| loss (?P<loss>\S+) \| (?P<tokens_per_s>[\d.,]+)(?: tok/s)?",
    facts=(r"widget on (?P<world_size>\d+) workers, batch (?P<global_batch>\d+)", r"net: (?P<model>\S+)"),
    begins=r"widget on \d+ workers",
    done=r"all done",
    rank=20,
)
HEAD = ["widget on 4 workers, batch 64", "net: tiny-2"]


def steps(*numbers: int, rate: int = 56_000, prefix: str = "") -> list[str]:
    return [f"{prefix}it {n} | loss {3 - n / 100:.2f} | {rate + n:,} tok/s" for n in numbers]


@pytest.fixture(autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a package of the user's own registers it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "widgets-1.0.dist-info").mkdir()
    (folder / "widgets-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: widgets\nVersion: 1.0\n")
    entry = f"[stepscope.store.importers]\nwidget_log = {__name__}:WIDGET\n"
    (folder / "widgets-1.0.dist-info" / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(folder)


def read(tmp_path: Path, lines: list[str], *, cut: int = 0) -> Imported:
    path = tmp_path / "job.out"
    text = "\n".join([*lines, ""])
    path.write_text(text[: len(text) - cut])
    assert detect(path)[0] == "widget_log"
    return read_foreign(path)


def test_steps_and_facts_become_a_run(tmp_path: Path) -> None:
    (run,) = read(tmp_path, [*HEAD, *steps(1, 2, 3), "all done"]).runs
    assert (run.world_size, run.global_batch, run.model, run.status) == (4, 64, "tiny-2", "ok")
    assert (run.samples_per_s.value, run.samples_per_s.n, run.unit) == (56_002.5, 2, "tokens")
    assert run.train_loss == 2.97


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_log_cut_anywhere_in_its_last_line_gives_no_false_rate(tmp_path: Path, cut: int) -> None:
    (run,) = read(tmp_path, [*HEAD, *steps(1, 2, 3)], cut=cut).runs
    assert run.samples_per_s.value in (56_001, 56_002, 56_002.5)


def test_a_rate_cut_inside_a_line_is_left_out_with_its_line(tmp_path: Path) -> None:
    lines = [*HEAD, *steps(1, 2), "it 3 | loss 2.97 | 56", *steps(4)]
    imported = read(tmp_path, lines)
    assert imported.runs[0].samples_per_s.value == 56_003
    assert any("line 5" in note for note in imported.notes)


def test_one_rank_of_several_counts(tmp_path: Path) -> None:
    lines = [
        line
        for n in (1, 2, 3)
        for rank in (1, 0)
        for line in steps(n, rate=1000 * (rank + 1), prefix=f"[rank{rank}]: ")
    ]
    (run,) = read(tmp_path, [*HEAD, *lines]).runs
    assert run.samples_per_s.value == 2002.5
    (unnamed,) = read(tmp_path, [*HEAD, *(line for n in (1, 2, 3) for line in steps(n) + steps(n, rate=9000))]).runs
    assert unnamed.samples_per_s.value == 56_002.5


@pytest.mark.parametrize("head", [[], HEAD])
def test_a_restart_is_another_run(tmp_path: Path, head: list[str]) -> None:
    runs = read(tmp_path, [*HEAD, *steps(*range(1, 9)), *head, *steps(2, 3, 4, 5), "all done"]).runs
    assert [(run.world_size, run.run_id) for run in runs] == [(4, "job-line1"), (4, "job-line11")]


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "oom", "after step 2"),
        (
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "interrupted",
            "CANC",
        ),
        ("Traceback (most recent call last):", "error", "a traceback after step 2"),
    ],
)
def test_how_it_ended(tmp_path: Path, line: str, status: str, says: str, cut: int) -> None:
    (run,) = read(tmp_path, [*HEAD, *steps(1, 2), line], cut=cut).runs
    assert run.status == status
    assert says in (run.error or "")


def test_a_log_without_a_whole_step_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no step was logged"):
        read(tmp_path, [*HEAD, "it 3 | loss 2.97 | 56 it 4 | loss 2.97 | 57"])


@pytest.mark.parametrize("cut", range(1, 12))
@pytest.mark.parametrize("rate", ["48,122", "48122", "48122.5"])
def test_a_line_that_ends_in_its_number_torn_before_its_end_gives_no_false_rate(
    tmp_path: Path, rate: str, cut: int
) -> None:
    whole = [f"it {n} | loss {3 - n / 100:.2f} | {rate}" for n in (1, 2, 3)]
    torn = f"it 4 | loss 2.96 | {rate}"[:-cut]
    imported = read(tmp_path, [*HEAD, *whole, torn, f"it 5 | loss 2.95 | {rate}"])
    assert imported.runs[0].samples_per_s.value == float(rate.replace(",", ""))
    assert imported.runs[0].samples_per_s.n == 3
    assert any("line 6" in note for note in imported.notes)


def test_a_step_that_is_slow_is_kept(tmp_path: Path) -> None:
    rates = [48_122, 48_200, 6_300, 48_150, 48_100]
    imported = read(tmp_path, [*HEAD, *(f"it {n} | loss 2.5 | {rate}" for n, rate in enumerate(rates))])
    assert imported.runs[0].samples_per_s.n == 4
    assert imported.notes == ()


def test_a_steps_line_states_facts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = step_log(
        "widget_log",
        title="log of Widget",
        step=r"\bit (?P<step>\d+)/(?P<total_steps>\d+) \| (?P<tokens_per_s>\d+)",
        facts=(r"on (?P<world_size>\d+) workers",),
        rank=20,
    )
    monkeypatch.setattr(f"{__name__}.WIDGET", stated)
    (run,) = read(tmp_path, ["it 1/3 | 500 on 4 workers", "it 2/3 | 510 on 4 workers"]).runs
    assert (run.world_size, run.status, run.samples_per_s.value) == (4, "ok", 510)
    assert any("step 2" in note for note in run.notes)
    (whole,) = read(tmp_path, [f"it {n}/3 | 500 on 4 workers" for n in (1, 2, 3)]).runs
    assert whole.notes == ()
    with pytest.raises(ValueError, match="glow"):
        step_log("widget_log", title="", step=r"(?P<step>\d+) (?P<glow>\d+)")


def test_the_peak_is_that_of_any_rank_and_mfu_that_of_the_median_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = step_log(
        "widget_log",
        title="log of Widget",
        step=r"\bit (?P<step>\d+) \| (?P<tokens_per_s>\d+) \| (?P<peak_memory_gib>[\d.]+)GiB \| mfu (?P<mfu>[\d.]+)%",
        start=r"\bit \d+ \|",
        sign="GiB",
        rank=20,
    )
    monkeypatch.setattr(f"{__name__}.WIDGET", memory)
    text = "[rank{}]: it {} | 500 | {}GiB | mfu {}%"
    lines = [text.format(r, n, 30 + r + (n == 2), 20 + n) for n in (1, 2, 3) for r in (0, 1)]
    imported = read(tmp_path, [*lines, "[rank0]: it 4 | 50"])
    (run,) = imported.runs
    assert (run.peak_memory_bytes, run.mfu) == (32 << 30, pytest.approx(0.22))
    assert any("1 torn line left out (line 7)" in note for note in imported.notes)


def test_an_error_that_the_job_outlived_is_not_its_end(tmp_path: Path) -> None:
    lines = [*HEAD, *steps(1, 2), "Traceback (most recent call last):", "ValueError: of a tracker", *steps(3, 4, 5, 6)]
    (run,) = read(tmp_path, lines).runs
    assert (run.status, run.error) == ("ok", None)


def test_how_each_job_of_a_log_ended_is_its_own(tmp_path: Path) -> None:
    lines = [*HEAD, *steps(*range(1, 9)), "Main process received SIGTERM, exiting", *HEAD, *steps(9, 10, 11)]
    imported = read(tmp_path, lines)
    assert [run.status for run in imported.runs] == ["interrupted", "ok"]
    assert [sign.kind for sign in imported.signs] == ["cancelled"]
