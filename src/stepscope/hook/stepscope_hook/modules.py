"""The modules of the job: whose calls are forward passes of the diary, end a step, or become ranges of a trace."""

import weakref

from stepscope_hook.looks import is_compiling

MOST_OTHERS = 64


def outermost(modules):
    """Return those that are in none of the others."""
    inner = {id(child) for module in modules for child in module._modules.values()}
    return [module for module in modules if id(module) not in inner]


class Roots:
    """The modules that are the model, known by id, called through their class: their calls are its forward passes.

    others: likewise outermost modules that the optimizer does not train (a teacher, a target network, an average): their
    calls are looked at where no gradients are recorded.

    Their class is changed, not they: hooks on a module would be copied, pickled and scripted with it.
    """

    def __init__(self, diary):
        self.diary = diary
        self.models = {}
        self.others = {}
        self.classes = set()
        self.trained = set()
        self.deepened = False
        """Whether children stand for roots that nobody called."""

    def find(self, modules, optimizer):
        """Look at each outermost module that holds parameters of the optimizer, and below it at the only child that holds
        them all."""
        self.trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for module in outermost(modules):
            if self.trained_in(module):
                for member in self.chain(module):
                    self.add(member)
            else:
                self.add_other(module)

    def chain(self, module):
        """Return a module and the only child of the last one that holds all of its trained parameters, and so on.

        Nothing below what is compiled is looked at, nor a module that is compiled in place.
        """
        trained, members = self.trained_in(module), []
        while module is not None and not compiled_in_place(module) and len(members) < 16:
            members.append(module)
            if type(module).__name__ == "OptimizedModule":
                break
            module = next((child for child in children(module) if self.trained_in(child) == trained), None)
        return members

    def trained_in(self, module):
        return {id(parameter) for parameter in module.parameters()} & self.trained

    def look_deeper(self):
        """Look at the children that train, where passes are seen and no root is called (Lightning calls training_step)."""
        diary = self.diary
        if diary.ever_forward or not diary.ever_backward:
            return
        self.deepened = True
        for module in [reference() for reference in list(self.models.values())]:
            if module is None or type(module).__name__ == "OptimizedModule":
                continue
            for child in children(module)[:64]:
                if not self.trained_in(child):
                    self.add_other(child)
                elif not compiled_in_place(child):
                    self.add(child)

    def add_other(self, module):
        if len(self.others) < MOST_OTHERS and next(iter(module.parameters()), None) is not None:
            if not compiled_in_place(module):
                self.add(module, self.others)

    def add(self, module, among=None):
        key, among = id(module), self.models if among is None else among
        if key in among:
            return
        among[key] = weakref.ref(module, lambda _: among.pop(key, None))
        kind = type(module)
        if kind not in self.classes:
            self.classes.add(kind)
            self.time_calls(kind)

    def time_calls(self, kind):
        import torch

        diary, models, others, grad = self.diary, self.models, self.others, torch.is_grad_enabled
        compiling = is_compiling()
        own = kind.__dict__.get("__call__")

        def call_of_root(self, *args, **kwargs):
            call = own.__get__(self) if own is not None else super(kind, self).__call__
            trains = id(self) in models
            if compiling() or not (trains or id(self) in others) or diary.depth or not diary.in_training_thread():
                return call(*args, **kwargs)
            records = grad()
            if records and not trains:
                return call(*args, **kwargs)
            diary.depth = 1
            diary.forward_begins(self if trains else None, records)
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                diary.raises(error, "forward" if records else "inference")
                raise
            finally:
                diary.depth = 0
                diary.forward_ends()

        kind.__call__ = call_of_root


def children(module):
    return [child for child in module._modules.values() if child is not None]


def compiled_in_place(module):
    return getattr(module, "_compiled_call_impl", None) is not None


def around_forwards(before, after):
    """Register both with torch for all modules; return the handles."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    handles = [register_module_forward_pre_hook(before)]
    try:
        handles.append(register_module_forward_hook(after, always_call=True))
    except TypeError:  # torch before 2.1
        handles.append(register_module_forward_hook(after))
    return handles


class Forwards:
    """A time window for jobs without an optimizer: every forward pass of a model ends a step.

    A model is an outermost module with parameters; a loss has none. Where a model trains, passes in eval mode or without
    gradients (an evaluation) are no steps. The hooks are on all modules until the first window is over: they cost about
    1 us a module and pass.
    """

    def __init__(self, steps):
        self.steps = steps
        self.inside = None
        """id() of the outermost module with parameters that runs."""
        self.trains = False
        self.with_parameters = weakref.WeakKeyDictionary()
        self.handles = []

    def begin(self):
        self.handles = around_forwards(self.before, self.after)

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
        has_parameters = self.with_parameters.get(module)
        if has_parameters is None:
            has_parameters = self.with_parameters[module] = next(iter(module.parameters()), None) is not None
        return has_parameters

    def counts(self, module):
        import torch

        training = module.training and torch.is_grad_enabled()
        self.trains = self.trains or training
        return training or not self.trains

    def step(self):
        steps = self.steps
        try:
            if steps.optimizer is None:
                steps.optimizer = -1
                steps.register()
            if steps.optimizer != 0:
                steps.boundary(None)
        except Exception as error:  # the job goes on whatever happens here
            steps.off(error)
        if steps.optimizer == 0 or (steps.plans.window is None and steps.plans.number > 1):
            for handle in self.handles:
                handle.remove()


class Scopes:
    """Forward passes of the model's modules as ranges of the trace: ``module: layers.3.attention``.

    Registered with torch for all modules while a window is open. memory: name each allocation's module, too.
    """

    def __init__(self, memory=False):
        import torch

        self.tell = getattr(torch.cuda.memory, "_set_memory_metadata", None) if memory else None  # torch 2.10
        self.names = {}
        self.open = []
        self.handles = around_forwards(self.before, self.after)

    def before(self, module, args):  # torch's signature
        import torch

        if not self.open:
            self.names = {id(part): name for name, part in module.named_modules()}
        name = self.names.get(id(module)) or type(module).__name__
        span = torch.profiler.record_function("module: " + name)
        span.__enter__()
        self.open.append((id(module), span, name))
        if self.tell is not None:
            self.tell(name)

    def after(self, module, args, output):  # torch's signature
        while self.open:
            if self.leave() == id(module):
                return

    def leave(self):
        """Leave the innermost module, which ends; return its id()."""
        key, span, _ = self.open.pop()
        span.__exit__(None, None, None)
        if self.tell is not None:
            self.tell(self.open[-1][2] if self.open else "")
        return key

    def close(self):
        for handle in self.handles:
            handle.remove()
        while self.open:
            self.leave()
