"""What is put into libraries that the script may import later, once they are there."""

import sys


class Waiting:
    """A finder that finds nothing itself: it calls a function after the module that it waits for has been imported."""

    def __init__(self):
        self.functions = {}

    def when(self, name, function):
        """Call the function with the module, now or after its import."""
        if is_there(name):
            function(sys.modules[name])
        else:
            self.functions.setdefault(name, []).append(function)

    def find_spec(self, name, path=None, target=None):  # the protocol of finders
        for begun in [other for other in self.functions if is_there(other)]:  # they were importing torch
            self.loaded(begun)
        if name not in self.functions:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if hasattr(spec.loader, "exec_module"):
            spec.loader = Loader(spec.loader, self, name)
        return spec

    def loaded(self, name):
        for function in self.functions.pop(name, ()):
            function(sys.modules[name])


class Loader:
    """The loader of a module, and what follows it. Who only asks for the module does not use it up."""

    def __init__(self, loader, waiting, name):
        self.loader, self.waiting, self.name = loader, waiting, name

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.waiting.loaded(self.name)


def is_there(name):
    """Whether a module has been imported whole."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


WAITING = Waiting()


def when_imported(name, function):
    if WAITING not in sys.meta_path:
        sys.meta_path.insert(0, WAITING)
    WAITING.when(name, function)


def replaced(owner, name, make):
    """Put ``make(what is there)`` in the place of an attribute, where there is one; as it is a method or a function."""
    import functools

    plain = getattr(owner, name, None)
    if plain is None:
        return
    made = make(plain)
    try:
        functools.update_wrapper(made, plain)
    except (AttributeError, TypeError):
        pass
    setattr(owner, name, made)
