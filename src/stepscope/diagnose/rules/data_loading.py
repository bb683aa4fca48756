"""The device, or on a CPU job every operator, waits while the host loads data.

What
----
Idle time of the device (on CPU jobs: time without operators) that falls mostly into the data loader's annotation, over
the window; mean over ranks.

Why
---
Late data stops the rank and, in the next collective, all others. More worker processes on the host nearly always help.

Known problems
--------------
Only marked loading counts (`enumerate(DataLoader)`, `stepscope.data`); a loop that reads by hand appears as
`launch-bound` or `python-overhead`. Loading that overlaps device work, or operators of another thread, costs nothing
and does not count. On CPU jobs operators inside the annotation (collation, augmentation) count as loading.

References
----------
torch.utils.data.DataLoader: num_workers, persistent_workers, pin_memory, prefetch_factor. `input-bound` asks the same
of the steps that `stepscope bench` times.
"""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.outcome import Said
from stepscope.diagnose.rule import Rule
from stepscope.diagnose.trace_facts import (
    SHARES,
    WORTH,
    Part,
    idle_share,
    read_in_full,
    severity_of,
    trace_command,
    unread,
)
from stepscope.records.finding import Advice, Finding
from stepscope.results.evidence import TraceEvidence


def _look(job: TraceEvidence) -> Said:
    ranks = read_in_full(job.summary)
    if not ranks:
        return unread(job.summary, "no rank has measurable events")
    part = Part([idle_share(p, "data") for p in ranks])
    on_cpu = all(p.budget is not None and p.budget.source == "cpu_spans" for p in ranks)
    idles = "no operator runs" if on_cpu else "the device idles"
    if part.share < WORTH:
        return f"{idles} {part} while the host loads data, limit {format_percent(WORTH)}"
    return Finding(
        severity=severity_of(part.share),
        title=f"{idles} {part} of the time while the host loads data",
        evidence=part.spread or ("idle time inside the data loader's annotation",),
        stake_fraction=part.share,
        confidence="measured from launches and their kernels" if not on_cpu else "measured from operators",
        advice=(
            Advice(
                text="use more DataLoader workers, persistent_workers=True, pin_memory=True, prefetch_factor",
                command=trace_command(job, "--show phases,idle"),
            ),
            *in_words_of("loader workers", used_in(job.summary)),
            Advice(text="decode and augment in advance, or on the device"),
        ),
    )


RULE = Rule(
    name="data-loading",
    symptom="computation stops while the host loads data",
    needs=("traces",),
    look_at_job=_look,
    protocol=2,
    thresholds=SHARES,
)
