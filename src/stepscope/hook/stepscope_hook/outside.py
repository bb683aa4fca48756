"""What is no part of a step: evaluations, checkpoints, and the pause in which a window is written.

A forward pass without gradients is an evaluation only where that is known: the module that trains runs in eval mode, or on
batches of a loader whose batches are not trained on. Else it is a part of every step (a teacher, a target network), or,
where the step before had none, an event between steps (a rollout).
"""

import functools
from time import perf_counter_ns

from stepscope_hook.record import BACKWARD, BEFORE, COMM, DATA, FORWARD, INFERENCE, OTHER, OUTSIDE, WINDOW

SHORT_NS = 100000
"""A wait for data below this holds no delay that matters."""


def guarded(method):
    """Wrap a method, after whose first exception the diary is off. It has no ``*args``, which would take longer to call."""
    make = _of_any if method.__defaults__ else {2: _of_one, 3: _of_two}.get(method.__code__.co_argcount, _of_any)
    return functools.wraps(method)(make(method))


def _raised(diary, method, error):
    diary.off("{} in {}: {}".format(type(error).__name__, method.__name__, error))


def _of_one(method):
    def never_raises(self, a):
        try:
            return method(self, a)
        except Exception as error:  # the job goes on whatever happens here
            _raised(self, method, error)

    return never_raises


def _of_two(method):
    def never_raises(self, a, b):
        try:
            return method(self, a, b)
        except Exception as error:  # as above
            _raised(self, method, error)

    return never_raises


def _of_any(method):
    def never_raises(self, *args):
        try:
            return method(self, *args)
        except Exception as error:  # as above
            _raised(self, method, error)

    return never_raises


class Evaluation:
    """Forward passes that train nothing, one after the other. begin, end: looks; fetched: the wait after the last one.

    kind: of the event that they will be; module: id() of the trained one whose mode decided that, None: of no such module.
    """

    def __init__(self, kind, module, begin, resume):
        self.kind, self.module = kind, module
        self.begin = self.end = begin
        self.resume = resume
        self.forwards = 0
        self.inner_ns = 0
        self.fetched = None

    def turns(self, kind, module):
        """Return whether a further pass is of another kind: only the mode of the same module can tell."""
        return kind != self.kind and module is not None and self.module in (None, module)


class Outside:
    """Part of the diary (diary.py), which has the clock and the parts of the step."""

    def without_gradients(self, module):
        """Begin a forward pass without gradients. module: the one that trains, which is not in eval mode; None: another."""
        if self.sources.foreign():
            self.evaluate("evaluation", module)
            return
        evaluation, at = self.evaluation, module is not None
        usual = self.number - self.inferred[at] <= 1
        self.inferred[at] = self.number
        if evaluation is not None and not evaluation.turns("inference", module):
            evaluation.fetched = None
            return
        if not usual:
            self.evaluate("inference", module)
            return
        if evaluation is not None:
            self.end_evaluation()
        self.inferring = self.phase
        self.turn(INFERENCE)

    def evaluate(self, kind, module):
        """Begin a forward pass that trains nothing."""
        evaluation = self.evaluation
        if evaluation is not None and not evaluation.turns(kind, module):
            evaluation.fetched = None
            return
        if evaluation is not None:
            self.end_evaluation()
        look = self.look()
        if kind == "evaluation" and self.fetched is not None:
            begin, acc, not_ours, resume = self.fetched
            self.acc[:] = acc
            self.not_ours[:] = not_ours
            self.since = begin[0]
            if begin[1] is None:  # after a short wait, of which only the clock was read
                begin = (begin[0], look[1] - min(look[0] - begin[0], SHORT_NS), look[2])
            evaluation = Evaluation(kind, module, begin, resume)
            evaluation.inner_ns = self.inner_ns
        else:
            self.count(look[0])
            evaluation = Evaluation(kind, module, look, self.phase)
        self.evaluation = evaluation
        self.fetched = None
        if kind == "evaluation":
            self.sources.start = None  # its own loader's
        self.phase = OUTSIDE

    def end_evaluation(self):
        """End the evaluation, as training goes on: what came after its last forward pass belongs to it."""
        evaluation, self.evaluation = self.evaluation, None
        fetched = evaluation.fetched
        cut = evaluation.end if fetched is None else fetched[0]
        now = perf_counter_ns()
        self.acc[OUTSIDE] += cut[0] - self.since
        self.not_ours[0] += cut[1] - evaluation.begin[1]
        self.not_ours[1] += cut[2] - evaluation.begin[2]
        waited = 0
        if fetched is not None:
            waited = fetched[1]
            self.acc[DATA] += waited
            self.not_ours[0] += fetched[2]
            self.not_ours[1] += fetched[3]
        self.acc[evaluation.resume] += max(now - cut[0] - waited, 0)
        self.since = now
        self.phase = evaluation.resume
        self.tell(evaluation, cut[0])

    def tell(self, evaluation, until_ns):
        """Record the event of an evaluation."""
        ns = until_ns - evaluation.begin[0] - evaluation.inner_ns
        self.event(evaluation.kind, evaluation.begin[0], ns, count=max(evaluation.forwards, 1))

    def trains(self):
        """Begin a pass that trains: what was fetched is for it. What the workers of an epoch took is between steps."""
        self.fetched = None
        start = self.sources.trains()
        if start is not None and self.number:
            began_ns, ns, workers = start
            ns = min(ns, self.acc[DATA])
            self.acc[DATA] -= ns
            self.acc[OUTSIDE] += ns
            self.event("loader_start", began_ns, ns, what="{} workers".format(workers))

    @guarded
    def save_begins(self, what):
        """Return a look, where a checkpoint begins."""
        if self.saving or self.phase is None or self.phase == DATA:
            return None
        look = self.look()
        if self.evaluation is None:
            self.count(look[0])
            self.resume, self.phase = self.phase, OUTSIDE
        self.saving = 1
        self.saved = what
        return look

    @guarded
    def save_ends(self, look, kind="checkpoint"):
        if look is None:
            return
        self.saving = 0
        if self.evaluation is None:
            now = self.leave(look)
            self.count(now)
            self.phase = self.resume
            self.inner_ns += now - look[0]
        else:
            now = perf_counter_ns()
            self.evaluation.inner_ns += now - look[0]
        self.event(kind, look[0], now - look[0], what=self.saved)

    @guarded
    def part_begins(self, part):
        """Begin a part of the step, as the job's own code says. Returns (what it was in, the part, a look), or None where it
        is counted already."""
        if self.phase is None:
            self.begin()
        if self.saving or self.backwards or self.phase in (part, DATA, COMM):
            return None
        if self.evaluation is not None:
            self.end_evaluation()
        token = (self.phase, part, self.look())
        self.turn(part)
        self.ever_data = self.ever_data or part == DATA
        self.ever_waited = self.ever_waited or part == COMM
        if part in (FORWARD, BACKWARD):
            self.trains()
            self.seen_forward = part == FORWARD
            self.passes = self.ever_forward = True
            self.ever_backward = self.ever_backward or part == BACKWARD
        return token

    @guarded
    def part_ends(self, token):
        """End the part. token: of ``part_begins``."""
        before, part, look = token
        if self.saving or self.backwards or self.evaluation is not None:
            return
        if part == DATA:
            self.leave(look)
        self.turn(before if part in (DATA, COMM, INFERENCE) else OTHER if self.passes else BEFORE)

    @guarded
    def pause(self, began, what):
        """Count the time from ``began``, a look, until now, in which the window was written: no part of the step, which has
        just begun."""
        now = self.leave(began)
        ns = now - began[0]
        self.acc[OUTSIDE] += ns
        self.since = now
        self.flags |= WINDOW
        self.event("trace_written", began[0], ns, what=what)
