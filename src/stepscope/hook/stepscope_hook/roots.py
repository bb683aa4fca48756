"""The modules of the job that are the model: their calls are its forward passes."""

import weakref

from stepscope_hook.looks import is_compiling


class Roots:
    """Modules known by id, called through their class.

    Their class is changed, not they: hooks on a module would be copied, pickled and scripted with it.
    """

    def __init__(self, diary):
        self.diary = diary
        self.known = {}
        self.classes = set()
        self.trained = set()
        self.deepened = False
        """Whether children stand for roots that nobody called."""

    def find(self, modules, optimizer):
        """Each outermost module that holds parameters of the optimizer, and below it the only child that holds them all."""
        self.trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
        inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
        for module in modules:
            if id(module) in inner or not self.held(module):
                continue
            for each in self.chain(module):
                self.add(each)

    def chain(self, module):
        """A module and the only child of the last one that holds all of its trained parameters, and so on.

        Nothing below what is compiled is looked at, nor a module that is compiled in place.
        """
        held, found = self.held(module), []
        while module is not None and not compiled_in_place(module) and len(found) < 16:
            found.append(module)
            if type(module).__name__ == "OptimizedModule":
                break
            module = next((child for child in children(module) if self.held(child) == held), None)
        return found

    def held(self, module):
        return {id(each) for each in module.parameters()} & self.trained

    def look_deeper(self):
        """Where passes are seen and no root is called (Lightning calls training_step): look at the children that train."""
        diary = self.diary
        if diary.ever_forward or not diary.ever_backward:
            return
        self.deepened = True
        for module in [reference() for reference in list(self.known.values())]:
            if module is None or type(module).__name__ == "OptimizedModule":
                continue
            for child in children(module)[:64]:
                if self.held(child) and not compiled_in_place(child):
                    self.add(child)

    def add(self, module):
        key = id(module)
        if key in self.known:
            return
        self.known[key] = weakref.ref(module, lambda _: self.known.pop(key, None))
        kind = type(module)
        if kind not in self.classes:
            self.classes.add(kind)
            self.time_calls(kind)

    def time_calls(self, kind):
        import torch

        diary, known, grad, compiling = self.diary, self.known, torch.is_grad_enabled, is_compiling()
        own = kind.__dict__.get("__call__")

        def call_of_root(self, *args, **kwargs):
            call = own.__get__(self) if own is not None else super(kind, self).__call__
            if compiling() or id(self) not in known or diary.depth or not diary.mine():
                return call(*args, **kwargs)
            diary.depth = 1
            diary.forward_begins(self.training, grad())
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                diary.raises(error, "forward")
                raise
            finally:
                diary.depth = 0
                diary.forward_ends()

        kind.__call__ = call_of_root


def children(module):
    return [child for child in module._modules.values() if child is not None]


def compiled_in_place(module):
    return getattr(module, "_compiled_call_impl", None) is not None
