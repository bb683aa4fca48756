"""What the step model reaches on sources that its constants have not seen: ``python -m benchmarks.fit_left_out FOLDER``.

Fits all of :mod:`benchmarks.fit_step`'s constants anew, from their defaults, on part of the published rows, and grades
the rest: each source left out in turn, random halves of the sources, random halves of the groups of one source, model and
number of GPUs. Code that no fitted row ran has no constants of its own. Intervals are the shipped ones, constants of
memory too. Takes half an hour.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from benchmarks.fit_step import OF_STACKS, Fit, Stacks, family_factors
from benchmarks.validate.grade import figures
from benchmarks.validate.questions import QUESTIONS
from stepscope.predict.step import calibration
from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.run_fit import Material, speed
from stepscope.predict.step.run_layout import Asked
from stepscope.predict.step.run_rows import TrainingRow

MOST = 24
"""Rows of one source that are fitted on; the rest says little more."""
HALVES = 3
NOT_FITTED = ("mfu-convention", "collectives-middle")
FACTS = frozenset({name for _, name in OF_STACKS})
SHIPPED, SHIPPED_STACKS = calibration.PUBLISHED, {name: dict(values) for name, values in calibration.STACKS.items()}
Found = dict[str, dict[str, float]]


def source_of(row: TrainingRow) -> str:
    return row.source.removesuffix("-failed")


def group_of(row: TrainingRow) -> Hashable:
    return source_of(row), row.model, row.n_gpus


def learn(rows: Sequence[Asked], material: Material) -> None:
    """Puts constants fitted on ``rows`` in the place of the shipped ones."""
    by_source: dict[str, list[Asked]] = defaultdict(list)
    for asked in rows:
        by_source[asked.row.source].append(asked)
    few = [asked for _, found in sorted(by_source.items()) for asked in found[:: -(-len(found) // MOST)]]
    ran = {asked.stack for asked in few}
    stacks: Stacks = {
        code: {name: value for name, value in values.items() if name not in FACTS}
        for code, values in SHIPPED_STACKS.items()
        if code in ran
    }
    memory = {name: getattr(SHIPPED, name) for name in ("gradient_factor", "fragmentation")}
    c, stacks = Fit(few, simulated=False, codes=ran).descend(StepCalibration(**memory), stacks, rounds=3)
    calibration.PUBLISHED, calibration.STACKS = c, stacks
    factors = family_factors(few, material)
    calibration.FAMILY_FACTOR.clear()
    calibration.FAMILY_FACTOR.update(factors)


def ratios(folder: Path, source: str) -> list[tuple[float, bool]]:
    """Of the rows of a source that was just left out: measured over predicted speed, and whether the model has experts."""
    rest = part(folder, lambda row: source_of(row) == source)
    return [(speed(asked) / rest.speed(asked), bool(asked.model.experts)) for asked in rest.whole]


def unseen(found: Sequence[Sequence[tuple[float, bool]]]) -> None:
    """10% and 90% quantiles, ``unseen`` in ``predict/step/calibration.py``; a source weighs as the root of its rows."""
    for experts in (False, True):
        rows = sorted((ratio, len(rows) ** -0.5) for rows in found for ratio, moe in rows if moe is experts)
        whole = sum(weight for _, weight in rows)
        reached, ends = 0.0, []
        for ratio, weight in rows:
            before, reached = reached, reached + weight
            ends += [ratio for share in (0.1, 0.9) if before < share * whole <= reached]
        print(f"unseen{' moe' if experts else ''}: " + ", ".join(f"{ratio:.2f}" for ratio in ends))


def part(folder: Path, keep: Callable[[TrainingRow], bool]) -> Material:
    made = Material(folder)
    made.rows = [row for row in made.rows if keep(row)]
    return made


def grade(folder: Path, seen: Callable[[TrainingRow], bool]) -> tuple[Found, Found]:
    """Figures by question, of rows seen and of the others."""
    calibration.PUBLISHED, calibration.STACKS = SHIPPED, SHIPPED_STACKS
    known = part(folder, seen)
    learn(known.near, part(folder, seen))
    found = []
    for material in (part(folder, seen), part(folder, lambda row: not seen(row))):
        asked = [question for question in QUESTIONS if question.key not in NOT_FITTED]
        found.append({question.key: figures(question.ask(material)) for question in asked})
    return found[0], found[1]


def sources_out(rows: Iterable[TrainingRow]) -> dict[str, set[Hashable]]:
    return {source: {source} for source in sorted({source_of(row) for row in rows})}


def halves(names: Sequence[Hashable]) -> list[set[Hashable]]:
    ordered = sorted(names, key=str)
    return [set(random.Random(seed).sample(ordered, len(ordered) // 2)) for seed in range(HALVES)]


def show(title: str, found: Sequence[tuple[Found, Found]]) -> None:
    """Means over the splits, each weighing as its rows."""
    print(f"\n{title} ({len(found)} splits)")
    head = f"{'question':22}{'rows':>6}  {'seen: mean':>10} {'median':>7}"
    print(f"{head}   {'left out: mean':>14} {'median':>7} {'worst':>7} coverage")
    for key in found[0][0]:
        sides = [[split[side][key] for split in found if split[side][key].get("rows")] for side in (0, 1)]
        if not all(sides):
            continue
        seen, out = ([weighed(side, name) for name in PLAIN[1:]] for side in sides)
        rows, worst = sum(int(one["rows"]) for one in sides[1]), max(one["mean_error"] for one in sides[1])
        others = sorted({name for one in sides[1] for name in one} - set(PLAIN))
        more = "  ".join(f"{name} {weighed(sides[1], name):.1%}" for name in others)
        line = f"{key:22}{rows:6}  {seen[0]:10.1%} {seen[1]:7.1%}   {out[0]:14.1%} {out[1]:7.1%} {worst:7.1%} {out[2]:8.0%}"
        print(f"{line}  {more}")


PLAIN = ("rows", "mean_error", "median_error", "coverage")


def weighed(found: Sequence[dict[str, float]], name: str) -> float:
    there = [one for one in found if name in one]
    return sum(one[name] * one["rows"] for one in there) / sum(one["rows"] for one in there) if there else float("nan")


def main(folder: Path) -> None:
    whole = Material(folder)
    sources = sorted({source_of(asked.row) for asked in whole.near})
    groups = sorted({group_of(asked.row) for asked in whole.near}, key=str)
    one_out, off = [], []
    for source in sources:
        split = grade(folder, lambda row, source=source: source_of(row) != source)  # type: ignore[misc]
        one_out.append(split)
        off.append(ratios(folder, source))
        shown = split[1].get("zero-shot", {})
        print(f"{source:24} left out: " + "  ".join(f"{n} {v:.3g}" for n, v in shown.items()), flush=True)
    show("each source left out", one_out)
    unseen(off)
    show("half of the sources", [grade(folder, lambda row, h=h: source_of(row) in h) for h in halves(sources)])  # type: ignore[misc]
    show("half of the groups", [grade(folder, lambda row, h=h: group_of(row) in h) for h in halves(groups)])  # type: ignore[misc]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
