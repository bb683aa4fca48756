"""The script's data: read in this process, with data, as much as the steps need; what the model is given has none."""

import collections
import functools
import inspect
import time

from stepscope_dry.imports import when_imported

AT_MOST_S = 20.0
"""Seconds in which a loader's batches are read; then those that were read come again."""
LONG_ENOUGH = 64
"""Batches that a loader says it has, where one rank's share of a small data set is less: the steps need them."""


def begin(session):
    import torch.utils.data as data

    loaders = Loaders(session)
    session.parts["loaders"] = loaders
    loaders.make_loaders(data.DataLoader)
    loaders.read_data_sets(data)
    when_imported("torchdata.stateful_dataloader", lambda module: loaders.make_loaders(module.StatefulDataLoader))


class Loaders:
    """batches_from: the batches of --batch-from."""

    def __init__(self, session):
        self.session = session
        self.batches_from = None

    def real(self, function, *args, **kwargs):
        """Call with data: nothing of it is work of a step."""
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        self.session.paused += 1
        try:
            with unset_fake_temporarily():
                return function(*args, **kwargs)
        finally:
            self.session.paused -= 1

    def given(self):
        """Return the batches of --batch-from, None without."""
        path = self.session.options.get("batch_from")
        if path and self.batches_from is None:
            import torch

            batches = self.real(torch.load, path, map_location="cpu", weights_only=False)
            self.batches_from = batches if isinstance(batches, list) else [batches]
        return self.batches_from

    def make_loaders(self, kind):
        loaders, made, begun, length = self, kind.__init__, kind.__iter__, kind.__len__
        signature = inspect.signature(made)

        @functools.wraps(made)
        def init(loader, *args, **kwargs):
            bound = signature.bind(loader, *args, **kwargs)
            bound.arguments.update(num_workers=0, pin_memory=False)
            for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                bound.arguments.pop(name, None)
            loaders.real(made, *bound.args, **bound.kwargs)

        def iterate(loader):
            return Batches(loaders, loader, begun)

        def count(loader):
            number = loaders.real(length, loader)
            return max(number, LONG_ENOUGH) if loaders.session.paused == 0 else number

        kind.__init__, kind.__iter__, kind.__len__ = init, iterate, count

    def read_data_sets(self, data):
        """A data set is made and read with data: it looks into its files, and draws numbers."""
        loaders = self

        def with_data(function):
            @functools.wraps(function)
            def method(*args, **kwargs):
                return loaders.real(function, *args, **kwargs)

            return method

        def init_subclass(cls, **kwargs):
            super(data.Dataset, cls).__init_subclass__(**kwargs)
            for name in ("__init__", "__getitem__", "__getitems__"):
                if inspect.isfunction(vars(cls).get(name)):
                    setattr(cls, name, with_data(vars(cls)[name]))

        data.Dataset.__init_subclass__ = classmethod(init_subclass)
        for module in (data, data.dataset):
            module.random_split = with_data(module.random_split)
        for kind in (data.TensorDataset, data.Subset):
            kind.__getitem__ = with_data(kind.__getitem__)

    def without_data(self, batch):
        """Return the batch with tensors that have shapes alone."""
        import torch
        from torch.utils._pytree import tree_map

        mode = self.session.mode

        def fake(value):
            if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
                made = mode.from_tensor(value)
                self.session.parts["memory"].seen(made)
                return made
            if isinstance(value, collections.UserDict):
                value.data = tree_map(fake, value.data)
            return value

        return tree_map(fake, batch)


class Batches:
    """One pass over a loader. A pass in which the model is trained has no end: the steps may need more than there is."""

    def __init__(self, loaders, loader, begun):
        self.loaders, self.loader, self.begun = loaders, loader, begun
        self.session = loaders.session
        self.kept = collections.deque(maxlen=8)
        self.spent_s = 0.0
        self.micro_steps = self.trained()
        self.given = loaders.given()
        self.number = 0
        self.inner = None if self.given else self.read(loaders.real, begun, loader)

    def __iter__(self):
        return self

    def __len__(self):
        return len(self.loader)

    def __getattr__(self, name):  # of torch's own iterator
        return getattr(self.__dict__["inner"], name)

    def trained(self):
        return self.session.step, self.session.micro_steps

    def read(self, function, *args):
        began = time.monotonic()
        try:
            return function(*args)
        except (FileNotFoundError, NotADirectoryError) as error:
            self.session.fail(
                "needs-data",
                "the script's data set is not here: {}".format(error),
                self.session.place_of(error.__traceback__)[0],
                fix="give it data of the same shapes, or batches that torch.save has written with --batch-from FILE",
            )
        finally:
            self.spent_s += time.monotonic() - began

    def __next__(self):
        return self.loaders.without_data(self.read(self.loaders.real, self.following))

    def following(self):
        self.number += 1
        if self.given:
            return self.given[(self.number - 1) % len(self.given)]
        if self.spent_s > AT_MOST_S and len(self.kept) > 1:
            self.session.note("loader", "its batches are slow to read: the first ones come again")
            self.kept.rotate(-1)
            return self.kept[-1]
        try:
            batch = next(self.inner)
        except StopIteration:
            if self.trained() == self.micro_steps or self.number == 1:
                raise
            self.session.note("loader", "the data ended before the step: it begins again")
            self.inner = self.begun(self.loader)
            batch = next(self.inner)
        self.same_shapes(batch)
        self.kept.append(batch)
        return batch

    def same_shapes(self, batch):
        """Note a batch of other shapes than the one before it."""
        if self.kept and shapes_of(batch) != shapes_of(self.kept[-1]):
            self.session.note(
                "lengths",
                "batches differ in shape: the figures are of those of one step, and --batch-from chooses them",
            )


def shapes_of(batch):
    from torch.utils._pytree import tree_leaves

    return [tuple(value.shape) for value in tree_leaves(batch) if hasattr(value, "shape")]
