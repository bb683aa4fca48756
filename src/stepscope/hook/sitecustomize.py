"""Python imports this at start-up because `stepscope profile` puts this folder first on PYTHONPATH.

It runs inside the user's job: standard library only, any Python from 3.8 on, and never an exception.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _step_aside(own):
    """Run the sitecustomize that this one shadows, from a sys.path that no longer holds this folder."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _load(own, name):
    """Import one of the hook's packages by its path: nothing is left on sys.path for it."""
    spec = importlib.machinery.PathFinder.find_spec(name, [own])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _begin():
    own = os.path.dirname(os.path.abspath(__file__))
    if os.environ.get("STEPSCOPE_HOOK"):
        try:
            _load(own, "stepscope_hook").install(os.environ["STEPSCOPE_HOOK"])
        except Exception as error:  # the job must start whatever happens here
            sys.modules.pop("stepscope_hook", None)
            print("stepscope: the hook is off: %s: %s" % (type(error).__name__, error), file=sys.stderr)
    _step_aside(own)


_begin()
