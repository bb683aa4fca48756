"""What a call of a process group returns: something to wait for, and a future."""

CALLS = (
    "allreduce", "broadcast", "reduce", "allgather", "reduce_scatter",
    "_allgather_base", "_reduce_scatter_base", "alltoall_base", "alltoall", "gather", "scatter", "send", "recv",
    "all_gather_single", "reduce_scatter_single", "all_to_all_single",
)  # fmt: skip
"""Calls of a group, whose first argument holds their results."""


def begin(session):
    """Let the results of calls of a group be waited for, and give them a future with their tensors, as hooks read it."""
    import torch

    if not torch.distributed.is_available():
        return
    from weakref import WeakKeyDictionary

    c10d, recorder, streams = torch._C._distributed_c10d, session.parts["operators"], session.parts["streams"]
    made = WeakKeyDictionary()

    class Future(torch.futures.Future):
        """What a hook makes of a result runs beside the computation, as NCCL's futures let it: waits in it hold nothing up.
        calls: collectives that it waits for."""

        calls = frozenset()
        beside = 0

        def then(self, callback):
            after, before = Future(), len(recorder.calls)
            Future.beside += 1
            try:
                after.set_result(callback(self))
            finally:
                Future.beside -= 1
            after.calls = self.calls.union(range(before, len(recorder.calls)))
            return after

        def wait(self):
            if not Future.beside:
                streams.wait(streams.current(), (0, self.calls))
            return super().wait()

    def keep(name, call):
        def called(self, tensors, *rest, **named):
            before = len(recorder.calls)
            work = call(self, tensors, *rest, **named)
            made[work] = tensors, frozenset(range(before, len(recorder.calls)))
            return work

        setattr(c10d.ProcessGroup, name, called)

    for name in filter(c10d.ProcessGroup.__dict__.__contains__, CALLS):
        keep(name, getattr(c10d.ProcessGroup, name))

    def get_future(self):
        tensors, calls = made.get(self, ([], frozenset()))
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        future = Future()
        future.calls = calls
        future.set_result(tensors[0] if tensors and isinstance(tensors[0], list) else tensors)
        return future

    def wait(self, *args):
        if self in made:
            streams.wait(streams.current(), (0, made[self][1]))
        return True

    kind = getattr(c10d, "FakeWork", c10d.Work)  # torch 2.6 has no name for it
    kind.get_future, kind.wait = get_future, wait
