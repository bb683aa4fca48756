"""The investigation in five steps: what each asks, what evidence there is for it, and what to run next."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnose.commands import own_command
from stepscope.diagnose.engine import all_rules
from stepscope.records.finding import Diagnosis
from stepscope.results.evidence import NEEDS, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. needs: attributes of Evidence, any of which is evidence for it, with what they are called."""

    number: int
    question: str
    needs: tuple[tuple[str, str], ...]
    command: str


STEPS = (
    Step(
        number=1,
        question="How long is a step, how far is it from the hardware's limits, and is the measurement sound?",
        needs=(("runs", "training runs"), ("traces", "traces")),
        command="stepscope bench --preset strong-scaling -o RUN",
    ),
    Step(
        number=2,
        question="Where is time lost: computation, communication, waiting for data or a peer, memory?",
        needs=(("scaling", "runs with a baseline"), ("cells", "steps by phase"), ("traces", "traces")),
        command="stepscope bench MATRIX.yaml --profile -o RUN && stepscope diagnose RUN",
    ),
    Step(
        number=3,
        question="Which collective, link, kernel, phase or allocation is the cause?",
        needs=(
            ("traces", "traces"),
            ("comm", "measured collectives"),
            ("nccl", "NCCL's log"),
            ("memory", "memory snapshots"),
        ),
        command="stepscope comm --ops all --sizes 1K:64M:4 --ranks 2 -o COMM && stepscope diagnose RUN COMM",
    ),
    Step(
        number=4,
        question="What would the step cost without that cause?",
        needs=(("calibration", "a calibration"), ("traces", "traces"), ("cells", "steps by phase")),
        command="stepscope calibrate COMM && stepscope predict --buckets RUN --calib COMM/calib.json",
    ),
    Step(
        number=5,
        question="Did the change help by more than the noise, and did anything else get worse?",
        needs=(),
        command="stepscope compare --run BEFORE.yaml AFTER.yaml --rounds 6",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """A step and how far it is answered. have: evidence for it, in words. fired, quiet, skipped: names of its rules; one
    for good news is never among the quiet, which are in order.

    next_commands: what to run for what is missing; the step's own command when there is nothing at all.
    """

    step: Step
    have: tuple[str, ...]
    fired: tuple[str, ...]
    quiet: tuple[str, ...]
    skipped: tuple[str, ...]
    next_commands: tuple[str, ...]


def investigate(evidence: Evidence, diagnosis: Diagnosis) -> tuple[StepState, ...]:
    """How far each of the five steps is answered."""
    return tuple(_state(step, evidence, diagnosis) for step in STEPS)


def _state(step: Step, evidence: Evidence, diagnosis: Diagnosis) -> StepState:
    mine = [rule for rule in all_rules() if rule.protocol == step.number]
    names = {rule.name for rule in mine}
    praise = {rule.name for rule in mine if rule.good_news}
    have = tuple(text for need, text in step.needs if getattr(evidence, need))
    if step.number == 5 and len(evidence.sources) > 1:
        have = (f"{len(evidence.sources)} sources to compare",)
    skipped = [each for each in diagnosis.skipped if each.rule in names]
    missing = [NEEDS[need][1] for need, _ in step.needs if not getattr(evidence, need)]
    commands = [own_command(c, evidence) for c in ([step.command] if not have else missing)]
    return StepState(
        step=step,
        have=have,
        fired=tuple(dict.fromkeys(f.rule for f in diagnosis.findings if f.rule in names)),
        quiet=tuple(q.rule for q in diagnosis.quiet if q.rule in names - praise),
        skipped=tuple(s.rule for s in skipped),
        next_commands=tuple(dict.fromkeys(c for c in commands if c)),
    )
