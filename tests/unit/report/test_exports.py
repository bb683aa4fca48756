"""Figures of a diary in other tools: what Prometheus' textfile holds, which stretches of steps curves are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.diaries import MS, START_UNIX_NS, job, planted, simulate, write_record

from stepscope.core.errors import DataError, UsageError
from stepscope.report import export_job
from stepscope.report.export_job import Exports, export, parse_target
from stepscope.report.exports import REGISTRY, Snapshot

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)\Z')


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.now: list[Snapshot] = []
        self.stretches: list[Snapshot] = []

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:
        self.now.append(now)
        self.stretches += stretches

    def close(self) -> str:
        return "kept"


def test_the_textfile_holds_each_figure_once_with_its_type_and_labels(tmp_path: Path) -> None:
    folder = planted(tmp_path / 'a "job"')
    (where,) = export(folder, [f"prometheus:{tmp_path / 'metrics'}"])
    assert Path(where).name == "stepscope-a__job_.prom"
    assert [path.name for path in (tmp_path / "metrics").iterdir()] == [Path(where).name]
    typed: dict[str, str] = {}
    values: dict[tuple[str, str], float] = {}
    for line in Path(where).read_text().splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert name not in typed
            typed[name] = kind
        elif not line.startswith("# HELP"):
            found = SAMPLE.match(line)
            assert found is not None, line
            assert found[1] in typed
            values[found[1], found[2]] = float(found[3])
    name = r'job="a \"job\""'
    assert values["stepscope_job_step_seconds", name] == pytest.approx(0.036)
    assert values["stepscope_job_input_ratio", name] == pytest.approx(2 / 36)
    assert values["stepscope_rank_waiting_ratio", f'{name},rank="0",host="node0"'] == pytest.approx(6 / 36)
    assert values["stepscope_job_steps_total", name] == 200
    assert typed["stepscope_job_steps_total"] == "counter"


def test_a_running_job_is_written_every_few_seconds_and_each_step_lies_in_one_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, now = Kept(), [0.0]
    monkeypatch.setattr(export_job, "parse_target", lambda text: (text, ""))
    monkeypatch.setattr(type(REGISTRY), "load", lambda *_: lambda *_: kept)
    exports = Exports(write_record(tmp_path), ["kept"], clock=lambda: now[0])
    exports.look()
    assert kept.now == []
    simulate(tmp_path, ranks=2, steps=60, seed=1, noise=0.0)
    exports.look()
    assert kept.now == []
    now[0] = 20.0
    exports.look()
    first = len(kept.stretches)
    simulate(tmp_path, ranks=2, steps=500, seed=1, noise=0.0)
    exports.look(last=True)
    assert exports.close() == ("kept",)
    assert [each.step for each in kept.now] == [60, 500]
    ends = [each.step for each in kept.stretches]
    assert ends == sorted(set(ends))
    assert ends[first - 1] == 60
    assert ends[-1] == 500
    last = kept.stretches[-1]
    assert last.figures["diary_step_ns"] == pytest.approx(13.7 * MS)
    assert last.flat["rank_1/diary_forward_ns"] == pytest.approx(4 * MS)
    assert "diary_outside_ns" not in last.flat
    assert last.at_unix_ns == pytest.approx(START_UNIX_NS + 500 * 13.7 * MS)


def test_a_target_that_is_none_and_a_folder_without_steps_are_refused(tmp_path: Path) -> None:
    assert parse_target("otlp:http://localhost:4318") == ("otlp", "http://localhost:4318")
    for text in ("promtheus:x", "prometheus", "prometheus:"):
        with pytest.raises(UsageError):
            parse_target(text)
    with pytest.raises(DataError, match="no step diary"):
        export(tmp_path, ["prometheus:x"])
    with pytest.raises(DataError, match="no step diary"):
        export(write_record(tmp_path / "empty"), [f"prometheus:{tmp_path / 'x'}"])
    assert job(tmp_path / "empty").steps is None
