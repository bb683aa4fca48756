"""The last gradient of a DDP backward pass that is ready: what follows it in the pass is waiting and transfer.

Which parameter's gradient is the last is learned in a few steps with a hook on every parameter; after them only the hooks
of those that were last stay.
"""

from threading import get_ident
from time import perf_counter_ns

from stepscope_hook.record import BACKWARD, COMM

LEARNED_IN = 2
"""Steps in which the last gradient is learned at first."""
LEARNED_AGAIN = 1000
"""Steps after which one step checks which gradient is the last."""
MOST_KEPT = 4


class LastGradient:
    """Times the reduction of DistributedDataParallel ``modules`` with parameters in the host's memory, whose backward pass
    waits for the others."""

    on_device = False

    def __init__(self, diary, modules):
        self.diary = diary
        self.modules = modules
        self.parameters = {}
        for module in modules:
            ignored = getattr(module, "parameters_to_ignore", ())
            for name, parameter in module.module.named_parameters():
                if parameter.requires_grad and name not in ignored:
                    self.parameters[id(parameter)] = parameter
        self.handles = []
        self.kept = set()
        self.lasts = set()
        self.last = None
        self.tail = False
        self.learning = 0
        self.steps = 0
        self.learn(LEARNED_IN)

    def learn(self, steps):
        self.learning, self.lasts = steps, set()
        self.watch(self.parameters)

    def watch(self, keys):
        for handle in self.handles:
            handle.remove()
        self.handles = [self.parameters[key].register_post_accumulate_grad_hook(self.ready) for key in keys]

    def ready(self, parameter):
        """Run as torch's hook: a gradient is complete."""
        diary = self.diary
        if get_ident() != diary.thread:
            return
        self.last = id(parameter)
        now = perf_counter_ns()
        first = diary.phase == BACKWARD
        if first or self.tail:  # the one before was not the last
            diary.acc[BACKWARD] += now - diary.since
            diary.since = now
        if first:
            diary.phase, self.tail = COMM, True

    def backward_begins(self):
        self.tail, self.last = False, None

    def backward_ends(self):
        diary = self.diary
        if self.last is not None and self.learning:
            self.lasts.add(self.last)
        if not self.tail:
            return
        self.tail = False
        if diary.phase == COMM:
            if self.sends():
                diary.ever_waited = True
                began = diary.since
                diary.turn(BACKWARD)
                if diary.groups is not None:
                    diary.groups.waited(self.reduces, (), diary.since - began)
            else:  # no_sync: nothing is sent
                diary.phase = BACKWARD

    def sends(self):
        """Whether this backward pass reduces gradients: not in no_sync."""
        return any(getattr(module, "require_forward_param_sync", True) for module in self.modules)

    def reduces(self):
        """Return the group and operation that the pass waited for: of several modules, the first one's."""
        return self.modules[0].process_group.group_name, "all_reduce"

    def step_ends(self):
        self.steps += 1
        if self.learning:
            self.learning -= 1
            if not self.learning and self.lasts:
                self.kept = (self.lasts | self.kept) if len(self.lasts | self.kept) <= MOST_KEPT else self.lasts
                self.watch(sorted(self.kept)[:MOST_KEPT])
        elif self.steps % LEARNED_AGAIN == 0:
            self.learn(1)


class LastGradientOnDevice(LastGradient):
    """The same for parameters on a GPU: events on its streams, read a step later, without waiting for them."""

    on_device = True

    def __init__(self, diary, modules):
        import torch

        self.cuda = torch.cuda
        self.event = None
        self.failed = False
        self.pairs = []
        """(last gradient ready, end of the backward pass) of this step."""
        super().__init__(diary, modules)

    def ready(self, parameter):
        """Run as torch's hook, on the device's thread of autograd: what counts is what was recorded last."""
        self.last = id(parameter)
        try:
            if self.cuda.is_current_stream_capturing():
                return
            if self.event is None:
                self.event = self.cuda.Event(enable_timing=True)
            self.event.record()
        except Exception as error:  # such as an event of another of the model's devices; the backward pass goes on
            self.last = self.event = None
            if not self.failed:
                self.failed = True
                self.diary.note("communication: {}: {}".format(type(error).__name__, error))

    def backward_ends(self):
        if self.last is not None and self.learning:
            self.lasts.add(self.last)
        if self.last is None or self.event is None or not self.sends():
            return
        end = self.cuda.Event(enable_timing=True)
        end.record()
        self.pairs.append((self.event, end))
        self.event = None

    def take(self):
        """Return the pairs of the step that ends."""
        pairs, self.pairs = self.pairs, []
        return pairs

    @staticmethod
    def nanoseconds(pairs):
        """Return the ns between the events of the pairs, or NaN where the device has not come to one yet."""
        if not pairs or not all(end.query() for _, end in pairs):
            return float("nan")
        return sum(ready.elapsed_time(end) for ready, end in pairs) * 1e6
