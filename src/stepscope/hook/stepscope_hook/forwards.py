"""A time window for jobs without an optimizer: every forward pass of a model ends a step.

A model is an outermost module with parameters; a loss has none. Where a model trains, passes in eval mode or without
gradients (an evaluation) are no steps.
"""

import weakref


class Forwards:
    """The hooks on all modules, until the first window is over: they cost about 1 us a module and pass."""

    def __init__(self, steps):
        self.steps = steps
        self.inside = None
        """id() of the outermost module with parameters that runs."""
        self.trains = False
        self.with_parameters = weakref.WeakKeyDictionary()
        self.handles = []

    def begin(self):
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self.handles.append(register_module_forward_pre_hook(self.before))
        try:
            self.handles.append(register_module_forward_hook(self.after, always_call=True))
        except TypeError:  # torch before 2.1
            self.handles.append(register_module_forward_hook(self.after))

    def before(self, module, args):  # torch's signature
        if self.inside not in (None, id(module)) or not self.is_model(module):
            return
        self.inside = id(module)
        if self.counts(module):
            self.step()

    def after(self, module, args, output):  # torch's signature
        if self.inside == id(module):
            self.inside = None

    def is_model(self, module):
        found = self.with_parameters.get(module)
        if found is None:
            found = self.with_parameters[module] = next(iter(module.parameters()), None) is not None
        return found

    def counts(self, module):
        import torch

        training = module.training and torch.is_grad_enabled()
        self.trains = self.trains or training
        return training or not self.trains

    def step(self):
        steps = self.steps
        if steps.optimizer is None:
            steps.optimizer = -1
            steps.register()
        if steps.optimizer != 0:
            steps.boundary(None)
        if steps.optimizer == 0 or (steps.plans.window is None and steps.plans.number > 1):
            for handle in self.handles:
                handle.remove()


def watch_forwards(steps):
    """Count forward passes until the first window is over."""
    Forwards(steps).begin()
