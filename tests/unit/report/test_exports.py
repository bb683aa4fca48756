"""Figures of a diary in other tools: what Prometheus' textfile holds, which stretches of steps curves are made of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.diaries import (
    MS,
    START_UNIX_NS,
    job,
    planted,
    simulate,
    write_gpu,
    write_hardware,
    write_record,
    write_samples,
)

from stepscope.core.errors import DataError, UsageError
from stepscope.report import export_job
from stepscope.report.export_job import Exports, export, parse_target
from stepscope.report.exports import REGISTRY, Snapshot
from stepscope.report.exports.grafana import COLUMNS, dashboard
from stepscope.report.exports.prometheus import metric
from stepscope.results.figures import figures_of

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)\Z')


WALL = {metric(key) for key in figures_of("wall")}


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
    name = r'run="a \"job\""'
    assert values["stepscope_job_step_seconds", name] == pytest.approx(0.036)
    assert values["stepscope_job_input_ratio", name] == pytest.approx(2 / 36)
    assert values["stepscope_rank_waiting_ratio", f'{name},rank="0",host="node0"'] == pytest.approx(6 / 36)
    assert values["stepscope_job_steps_total", name] == 200
    late = [values["stepscope_rank_late", f'{name},rank="{rank}",host="node0"'] for rank in range(2)]
    assert late == [0, 1]
    wall = sum(value for (metric, _), value in values.items() if metric in WALL)
    assert wall == pytest.approx(1.0)
    assert values["stepscope_job_goodput_ratio", name] == pytest.approx(200 * 36 / (200 * 36 + 48 + 8 * 105), rel=0.1)
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


def hardware(folder: Path) -> Path:
    """A job of two ranks of which everything that an export can name was seen."""
    planted(folder)
    for rank in range(2):
        write_samples(
            folder / ".stepscope" / f"diary-{rank:05d}-0.bin", [2.0**30] * 40,
            allocated=2.0**30, reserved=2.0**31, device=2.0**36,
        )  # fmt: skip
        write_gpu(folder, {}, rank=rank, steps=200)
    write_hardware(
        folder, "ports-node0-0", {"send_drops": 4, "receive_drops": 0}, rank=0, steps=200, name="eth0", kind="net"
    )
    return folder


def expressions(panels: Sequence[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_dashboard_asks_for_what_prometheus_is_given_and_for_each_figure_of_a_job(tmp_path: Path) -> None:
    prometheus, file = export(
        hardware(tmp_path / "p"), [f"prometheus:{tmp_path}", f"grafana:{tmp_path / 'of' / 'stepscope.json'}"]
    )
    written = json.loads(Path(file).read_text())
    assert written == dashboard()
    given = set(re.findall(r"^(\w+)\{", Path(prometheus).read_text(), re.MULTILINE))
    asked = {name for text in expressions(written["panels"]) for name in re.findall(r"stepscope_\w+", text)}
    assert asked <= given
    figures = {name.split("_", 2)[2] for name in given if not name.startswith("stepscope_job_ranks")}
    assert figures - {name.split("_", 2)[2] for name in asked} == {"outside_seconds"}  # it is no part of a step


def test_the_dashboard_is_laid_without_overlap_and_repeats_the_row_of_a_run() -> None:
    made = dashboard()
    variables = [variable["name"] for variable in made["templating"]["list"]]
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(made["panels"]))) - {"__rate_interval"} == set(variables)
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < COLUMNS
        taken |= cells
        targets = panel.get("targets", ())
        assert len({target["refId"] for target in targets}) == len(targets) <= 26
        legends = {target["legendFormat"] for target in targets}
        overrides = panel.get("fieldConfig", {}).get("overrides", ())
        assert {override["matcher"]["options"] for override in overrides} <= legends
    assert [row["title"] for row in made["panels"] if row.get("repeat") == "run"] == ["$run"]
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of Debian's package prometheus, is not installed"
)
def test_promtool_takes_the_textfile_and_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    (file,) = export(hardware(tmp_path / "p"), [f"prometheus:{tmp_path}"])
    metrics = subprocess.run(
        ["promtool", "check", "metrics"], input=Path(file).read_bytes(), capture_output=True, check=False
    )
    assert metrics.returncode == 0, metrics.stderr
    rules = [
        {"record": f"r{at}", "expr": text.replace("$__rate_interval", "1m")}
        for at, text in enumerate(expressions(dashboard()["panels"]))
    ]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", tmp_path / "rules.json"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    assert f"{len(rules)} rules found" in checked.stdout


def test_a_dashboard_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        export(planted(tmp_path / "p"), [f"grafana:{tmp_path}"])
