"""What `stepscope profile` and `stepscope run` put into a training job: it waits for torch, then counts optimizer steps.

This package runs in the user's processes. It uses the standard library and the job's own torch, works with Python 3.8
and later, and never raises into the job. What it writes is described in stepscope/records/profile.py.
"""

import atexit
import json
import os
import sys


def install(text):
    """Begin to watch for torch. text: JSON of STEPSCOPE_HOOK, written by the command line."""
    options = json.loads(text)
    if "dry" not in options:
        from stepscope_hook.ends import watch_failures

        watch_failures(options)
    if "torch" in sys.modules:
        _torch_is_there(options)
    else:
        watch = _Watch(options)
        sys.meta_path.insert(0, watch)
        atexit.register(_ended, watch)


def _ended(watch):
    """End a process that never had torch: where an exception ended it, the job's failure may be this one."""
    if watch.loaded or "dry" in watch.options or getattr(sys, "last_value", None) is None:
        return
    try:
        from stepscope_hook.control import Control
        from stepscope_hook.ends import write_early_end

        write_early_end(Control(watch.options))
    except Exception:  # it has failed already, and says why itself
        return


class _Watch:
    """A finder that finds nothing itself: it lets the others find torch, and calls once when torch has been executed."""

    def __init__(self, options):
        self.options = options
        self.busy = self.loaded = False

    def find_spec(self, name, path=None, target=None):  # the protocol of finders
        if name != "torch" or self.busy:
            return None
        import importlib.util

        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        loader = getattr(spec, "loader", None)
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self.loaded = True
            _torch_is_there(self.options)

        loader.exec_module = exec_module
        return spec


def _torch_is_there(options):
    if "dry" in options:
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec

        spec = PathFinder.find_spec("stepscope_dry", [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))])
        sys.modules["stepscope_dry"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.install(options["dry"])
    from stepscope_hook.control import Control, say

    try:
        from stepscope_hook.steps import watch

        watch(Control(options))
    except Exception as error:  # the job goes on whatever happens here
        say("the hook is off: {}: {}".format(type(error).__name__, error))
