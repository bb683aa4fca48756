"""torch.compile leaves modules and functions as they are: what it would have fused is priced as fused."""


def begin(session):
    import torch

    compiled = Compiled(session)
    session.parts["compiled"] = compiled

    def left_out(model=None, *args, **kwargs):
        if model is None:
            return lambda function: left_out(function, *args, **kwargs)
        compiled.add(model)
        return model

    def compile_module(module, *args, **kwargs):
        compiled.add(module)

    torch.compile = left_out
    torch.nn.Module.compile = compile_module
    torch.jit.script = lambda obj=None, *args, **kwargs: obj if obj is not None else (lambda function: function)
    torch.jit.trace = lambda func, *args, **kwargs: func


class Compiled:
    """Modules that the script gave to torch.compile."""

    def __init__(self, session):
        self.session = session
        self.given = []

    def add(self, what):
        self.session.note(
            "compile", "torch.compile is left out: {} runs without it, and is priced as fused".format(named(what))
        )
        self.given.append(what)

    def paths(self):
        """Return their paths, as operators have them; "" is the whole model. A function has its own name."""
        names = self.session.parts["modules"].names
        paths = [names.get(id(what)) or named(what) for what in self.given]
        return list(dict.fromkeys("" if name == type(what).__name__ else name for name, what in zip(paths, self.given)))


def named(what):
    return getattr(what, "__qualname__", None) or type(what).__name__
