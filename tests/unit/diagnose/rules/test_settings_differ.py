from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.bench_evidence import bench, made
from tests.evidence import evidence, rate, run

from stepscope.diagnose.rules.settings_differ import RULE
from stepscope.results.evidence import Evidence
from stepscope.results.joining import derived

SETTINGS = {
    "training.gradient_clip": 1.0,
    "final_accuracy": 0.5,
    "num_workers": 4,
    "output_dir": "exp1",
    "distributed.use_ddp": False,
}


def pair(*, settings: dict[str, Any] | None = None, **known: Any) -> Evidence:
    base = run("a", samples_per_s=rate(100), precision="fp32", settings=SETTINGS)
    mine = {
        **SETTINGS,
        "output_dir": "exp2",
        "final_accuracy": 0.6,
        "training.gradient_clip": 1.0000000001,
        "distributed.use_ddp": True,
        **(settings or {}),
    }
    fields = {"precision": "fp32", **known}
    return evidence(base, run("b", ranks=2, samples_per_s=rate(150), baseline_id="a", settings=mine, **fields))


def test_a_setting_that_changed_beside_the_ranks_fires() -> None:
    (found,) = RULE.check(pair(settings={"num_workers": 0}))
    assert found.title == "b on 2 ranks and its baseline differ in more than the number of ranks: num_workers"
    assert found.evidence == ("num_workers: 0 against 4",)


def test_the_same_difference_is_said_once_a_group() -> None:
    found = pair(settings={"num_workers": 0})
    more = run("c", ranks=4, samples_per_s=rate(300), precision="fp32", baseline_id="a", settings={"num_workers": 0})
    assert len(RULE.check(evidence(*found.runs, more))) == 1


def test_the_command_measures_the_baseline_with_the_settings_of_the_run() -> None:
    cells = [made("one", world_size=1), made("two", world_size=2)]
    both = bench(*cells)
    first, second = both.cells
    slower = replace(second.run, baseline_id=first.run.run_id, settings={**second.run.settings, "num_workers": 7})
    changed = replace(both, runs=(first.run, slower), cells=(first, replace(second, run=slower)))
    (found,) = RULE.check(derived(changed))
    assert found.evidence == (f"num_workers: 7 against {first.run.settings['num_workers']}",)
    assert (found.advice[0].command or "").endswith("--set base.num_workers=7")
    assert "--rerun" not in (found.advice[0].command or "")
