"""What is no part of a step: evaluations, checkpoints, and the pause in which a window is written."""

import functools
from time import perf_counter_ns

from stepscope_hook.record import BACKWARD, BEFORE, COMM, DATA, FORWARD, OTHER, OUTSIDE, WINDOW

SHORT_NS = 100000
"""A wait for data below this holds no delay that matters."""


def guarded(method):
    """The method, after whose first exception the diary is off. Without ``*args``, which would take longer to call."""
    few = method.__code__.co_argcount <= 3 and not method.__defaults__
    make = (_of_none, _of_one, _of_two)[method.__code__.co_argcount - 1] if few else _of_any
    return functools.wraps(method)(make(method))


def _raised(diary, method, error):
    diary.off("{} in {}: {}".format(type(error).__name__, method.__name__, error))


def _of_none(method):
    def never_raises(self):
        try:
            return method(self)
        except Exception as error:  # the job goes on whatever happens here
            _raised(self, method, error)

    return never_raises


def _of_one(method):
    def never_raises(self, a):
        try:
            return method(self, a)
        except Exception as error:  # as above
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
    """Forward passes of an evaluation, one after the other. begin, end: looks; fetched: the wait after the last one."""

    def __init__(self, begin, resume):
        self.begin = self.end = begin
        self.resume = resume
        self.forwards = 0
        self.inner_ns = 0
        self.fetched = None


class Outside:
    """Part of the diary (diary.py), which has the clock and the parts of the step."""

    def evaluate(self):
        """A forward pass that is no training begins."""
        evaluation = self.evaluation
        if evaluation is not None:
            evaluation.fetched = None
            return
        look = self.look()
        if self.fetched is not None:
            begin, acc, not_ours, resume = self.fetched
            self.fetched = None
            self.acc[:] = acc
            self.not_ours[:] = not_ours
            self.since = begin[0]
            if begin[1] is None:  # after a short wait, of which only the clock was read
                begin = (begin[0], look[1] - min(look[0] - begin[0], SHORT_NS), look[2])
            evaluation = Evaluation(begin, resume)
            evaluation.inner_ns = self.inner_ns
        else:
            self.acc[self.phase] += look[0] - self.since
            self.since = look[0]
            evaluation = Evaluation(look, self.phase)
        self.evaluation = evaluation
        self.phase = OUTSIDE

    def end_evaluation(self):
        """Training goes on: what came after the last forward pass of the evaluation belongs to it."""
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
        ns = cut[0] - evaluation.begin[0] - evaluation.inner_ns
        self.event("evaluation", evaluation.begin[0], ns, count=max(evaluation.forwards, 1))

    @guarded
    def save_begins(self, what):
        """A look, where a checkpoint begins."""
        if self.saving or self.phase is None or self.phase == DATA:
            return None
        look = self.look()
        if self.evaluation is None:
            self.acc[self.phase] += look[0] - self.since
            self.since = look[0]
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
            self.acc[OUTSIDE] += now - self.since
            self.since = now
            self.phase = self.resume
            self.inner_ns += now - look[0]
        else:
            now = perf_counter_ns()
            self.evaluation.inner_ns += now - look[0]
        self.event(kind, look[0], now - look[0], what=self.saved)

    @guarded
    def part_begins(self, part):
        """The job's own code says which part of the step begins. (what it was in, the part, a look); None: it is counted
        already."""
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
            self.fetched = None
            self.seen_forward = part == FORWARD
            self.passes = self.ever_forward = True
            self.ever_backward = self.ever_backward or part == BACKWARD
        return token

    @guarded
    def part_ends(self, token):
        """token: of ``part_begins``."""
        before, part, look = token
        if self.saving or self.backwards or self.evaluation is not None:
            return
        if part == DATA:
            self.leave(look)
        self.turn(before if part in (DATA, COMM) else OTHER if self.passes else BEFORE)

    @guarded
    def pause(self, began, what):
        """From ``began``, a look, until now the window was written: no part of the step, which has just begun."""
        now = self.leave(began)
        ns = now - began[0]
        self.acc[OUTSIDE] += ns
        self.since = now
        self.flags |= WINDOW
        self.event("trace_written", began[0], ns, what=what)
