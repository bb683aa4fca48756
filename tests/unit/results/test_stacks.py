"""Where a rank stands, by its stack and by the part of the step that its recorder saw."""

from __future__ import annotations

import pytest

from stepscope.results.ends.stacks import QUIET, StackFrame, Standing, signalled_stack, training_stack

SITE = "/x/site-packages/torch"
OWN = StackFrame(file="/home/me/train.py", line=31, name="fetch")


def stands(*calls: tuple[str, str], part: str | None = None) -> Standing:
    """Calls, the innermost first, in the user's training loop."""
    frames = tuple(StackFrame(file=file, line=1, name=name) for file, name in calls)
    return Standing(part=part, frames=(*frames, StackFrame(file="/home/me/train.py", line=9, name="main")))


@pytest.mark.parametrize(
    ("standing", "doing", "waits"),
    [
        (stands((f"{SITE}/utils/data/dataloader.py", "_try_get_data")), "data", False),
        (stands((f"{SITE}/distributed/distributed_c10d.py", "all_reduce"),
                (f"{SITE}/distributed/c10d_logger.py", "wrapper")), "all_reduce", True),
        (stands((f"{SITE}/autograd/graph.py", "_engine_run_backward"), part="backward"), "backward", True),
        (stands((f"{SITE}/serialization.py", "save")), "checkpoint", False),
        (stands((f"{SITE}/distributed/distributed_c10d.py", "barrier"),
                (f"{SITE}/distributed/checkpoint/utils.py", "all_reduce")), "checkpoint", True),
        (stands((f"{SITE}/_inductor/codecache.py", "load"), (f"{SITE}/_dynamo/eval_frame.py", "_fn")), "compilation", False),
        (stands(("/home/me/model.py", "f"), (f"{SITE}/_dynamo/eval_frame.py", "_fn"), part="forward"), "forward", False),
        (stands(("/home/me/score.py", "metric"), ("/home/me/train.py", "validate"), part="other"), "evaluation", False),
        (stands(("/home/me/train.py", "save_checkpoint"), part="other"), "checkpoint", False),
        (stands(("/x/stepscope_hook/window.py", "write")), "window", False),
        (stands(("/home/me/train.py", "evaluate_later_loss"), part="forward"), "evaluation", False),
        (stands(("/home/me/train.py", "fetch"), part="before"), "before", False),
        (Standing(part="data"), "data", False),
        (Standing(part="comm"), "comm", True),
        (Standing(), None, None),
    ],
)  # fmt: skip
def test_what_a_rank_does_and_whether_it_waits(standing: Standing, doing: str | None, waits: bool | None) -> None:
    assert (standing.doing, standing.waits) == (doing, waits)
    assert (doing in QUIET) == (doing in ("checkpoint", "compilation", "evaluation", "window"))


def test_the_part_and_the_steps_are_in_the_first_line_of_an_answer() -> None:
    found = training_stack("pid 7 at 2026-11-23T17:00:00.000Z in data after 119 steps\n\nthread MainThread (1):\n")
    assert (found.part, found.steps) == ("data", 119)
    assert training_stack("pid 7 at 2026-11-23T17:00:00.000Z in nothing after 0 steps\n").part is None


FAULTHANDLER = """Thread 0x00007f5d (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f69 (most recent call first):
  File "/home/me/train.py", line 6 in fetch
  File "/home/me/train.py", line 7 in <module>
"""


def test_the_stack_of_the_main_thread_is_taken_from_what_a_signal_left() -> None:
    assert [(frame.line, frame.name) for frame in signalled_stack(FAULTHANDLER, 0x7F69)] == [
        (6, "fetch"),
        (7, "<module>"),
    ]
    assert signalled_stack(FAULTHANDLER, 0x7F70) == ()
    twice = FAULTHANDLER + FAULTHANDLER.replace("line 6 in fetch", "line 8 in close")
    assert signalled_stack(twice, 0x7F69)[0].name == "close"
