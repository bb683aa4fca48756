"""Where the diary looks: torch's own functions, each with a call of the diary before and after it.

A look that cannot be put in place (another version of torch) is left out, and its column says so. Frames of these functions
are taken out of the traceback of an exception that nobody catches (ends.py).
"""

import functools
import gc
import sys
from threading import get_ident
from time import perf_counter_ns

GARBAGE_NS = 1000000
"""Shorter garbage collections are not recorded."""

SAVES = (
    ("torch", "save"),
    ("torch.distributed.checkpoint", "save"),
    ("torch.distributed.checkpoint", "async_save"),
    ("torch.distributed.checkpoint", "save_state_dict"),
    ("torch.distributed.checkpoint.state_dict_saver", "save"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save"),
    ("safetensors.torch", "save_file"),
    ("transformers.modeling_utils", "PreTrainedModel.save_pretrained"),
    ("transformers.trainer", "Trainer._save_checkpoint"),
    ("accelerate.accelerator", "Accelerator.save_state"),
    ("lightning.pytorch.trainer.trainer", "Trainer.save_checkpoint"),
    ("pytorch_lightning.trainer.trainer", "Trainer.save_checkpoint"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine.save_checkpoint"),
)
"""What writes a checkpoint: (module, name in it). The outermost call of them counts."""

ITERATORS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__"),
    ("torch.utils.data", "DataLoader.__iter__"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulBaseDataLoaderIter.__next__"),
    ("torchdata.stateful_dataloader", "StatefulDataLoader.__iter__"),
)
"""What the training loop waits in for data. DataLoader.__iter__ starts the workers of an epoch."""


class Looks:
    """All looks of one diary. Modules that the job imports later are looked at as soon as they are there."""

    def __init__(self, diary):
        self.diary = diary
        self.done = set()
        self.modules = 0
        self.collecting = 0
        self.compiling = None

    def begin(self):
        """Put the looks in place; called once torch is imported."""
        import torch

        diary = self.diary
        replace(torch.autograd, "backward", lambda original: backward(diary, original))
        work = getattr(sys.modules.get("torch.distributed"), "Work", None)
        replace(work, "wait", lambda original: wait(diary, original, id))
        ddp = torch.nn.parallel.DistributedDataParallel
        replace(ddp, "_sync_buffers", lambda original: wait(diary, original, group_of_buffers))
        gc.callbacks.append(self.collects)
        self.later()

    def later(self):
        """Look at modules that are there by now. Cheap where no module was imported since the last call."""
        if len(sys.modules) == self.modules:
            return
        self.modules = len(sys.modules)
        diary = self.diary
        for names, make in ((SAVES, save), (ITERATORS, fetch)):
            for module, name in names:
                if (module, name) in self.done or module not in sys.modules:
                    continue
                owner, _, last = name.rpartition(".")
                try:
                    place = sys.modules[module]
                    if owner:
                        place = getattr(place, owner, None)
                    if place is not None and hasattr(place, last):
                        self.done.add((module, name))
                        replace(place, last, functools.partial(make, diary, module.partition(".")[0] + "." + name))
                except Exception as error:  # of a module that imports its names when asked for them, and cannot
                    self.done.add((module, name))
                    diary.note("{}.{}: {}: {}".format(module, name, type(error).__name__, error))
        functional = "torch.distributed._functional_collectives"
        if functional in sys.modules and functional not in self.done:
            self.done.add(functional)
            replace(sys.modules[functional], "wait_tensor", lambda original: wait(diary, original, address))
            if diary.groups is not None:
                diary.groups.functional(sys.modules[functional])
        if "torch._dynamo" in sys.modules and self.compiling is None:
            self.compiling = Compiling(diary)

    def collects(self, phase, info):
        """Run as gc's own callback, on whatever thread collects."""
        if phase == "start":
            self.collecting = perf_counter_ns()
            return
        ns = perf_counter_ns() - self.collecting
        diary = self.diary
        if ns >= GARBAGE_NS and diary.phase is not None and diary.in_training_thread():
            diary.happened("garbage_collection", self.collecting, ns, "gen {}".format(info.get("generation")))


class Compiling:
    """Records compilations of torch.compile, by its own callbacks (torch 2.3 and later)."""

    def __init__(self, diary):
        self.diary = diary
        self.began = 0
        self.depth = 0
        try:
            from torch._dynamo.callback import callback_handler

            callback_handler.register_start_callback(self.starts)
            callback_handler.register_end_callback(self.ends)
        except Exception:  # another torch: compilations are not told
            return

    def starts(self, *args):
        if self.depth == 0:
            self.began = perf_counter_ns()
        self.depth += 1
        if self.diary.in_training_thread():
            self.diary.compiling = self.depth

    def ends(self, *args):
        self.depth = max(self.depth - 1, 0)
        diary = self.diary
        diary.compiling = min(diary.compiling, self.depth)
        if self.depth == 0 and diary.phase is not None and diary.in_training_thread():
            ns = perf_counter_ns() - self.began
            diary.happened("compilation", self.began, ns, "")


def replace(place, name, make):
    """Put ``make(original)`` in the place of a function, if it is there; a class that only inherits it is left alone."""
    if place is None or not hasattr(place, name) or (isinstance(place, type) and name not in place.__dict__):
        return
    original = getattr(place, name)
    made = make(original)
    try:
        functools.update_wrapper(made, original)
    except (AttributeError, TypeError):
        pass  # a function of C without these attributes
    setattr(place, name, made)


def is_compiling():
    """Return torch.compiler.is_compiling, a constant to torch.compile: what it traces is the original then."""
    return getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None) or (lambda: False)


def fetch(diary, what, original):
    def waits_for_data(self, *args, **kwargs):
        if not diary.in_training_thread():
            return original(self, *args, **kwargs)
        look = diary.data_begins()
        exhausted = False
        try:
            return original(self, *args, **kwargs)
        except StopIteration:
            exhausted = True
            raise
        except BaseException as error:
            diary.raises(error, "data")
            raise
        finally:
            if look is not None:
                diary.data_ends(look, exhausted, self)

    return waits_for_data


def backward(diary, original):
    compiling = is_compiling()

    def times_backward(*args, **kwargs):
        if compiling() or not diary.in_training_thread():
            return original(*args, **kwargs)
        outermost = diary.backward_begins()
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            diary.raises(error, "backward")
            raise
        finally:
            diary.backward_ends(outermost)

    return times_backward


def wait(diary, original, key):
    """Wrap a wait. key: of what is waited for, as in ``Groups.pending``, or its group and operation."""
    compiling = is_compiling()

    def times_waiting(*args, **kwargs):
        if compiling() or not diary.on or get_ident() != diary.thread:
            return original(*args, **kwargs)
        phase = diary.waits()
        began = diary.since
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            diary.raises(error, "comm")
            raise
        finally:
            if phase is not None:
                diary.waited(phase)
                if diary.groups is not None:
                    diary.groups.waited(key, args, diary.since - began)

    return times_waiting


def group_of_buffers(module):
    return module.process_group.group_name, "broadcast"


def address(tensor):
    """Return the address by which the result of a functional collective is known: where its memory is."""
    return tensor.untyped_storage().data_ptr()


def save(diary, what, original):
    def times_saving(*args, **kwargs):
        if not diary.in_training_thread():
            return original(*args, **kwargs)
        look = diary.save_begins(what)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            diary.raises(error, "checkpoint")
            raise
        finally:
            if look is not None:
                diary.save_ends(look)

    return times_saving
