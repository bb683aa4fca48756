"""torch's C++ parts are told that a CUDA device is there: fake tensors on ``cuda`` then work in any build of torch.

A build for CPUs has no guard for CUDA devices, and its autograd engine looks for the streams of an accelerator that it does
not find. torch has a guard that does nothing, for a build for CUDA on a machine without a GPU: it takes the place of the
missing one. The object that answers for the CUDA library gets another table of its functions, in which two of them differ:
"is CUDA there" (yes) and "has this device been used" (no). Which two is found by calling what asks for them. Where a build
keeps these things elsewhere nothing is changed, and ``begin`` says so.
"""

import ctypes
import os

GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
HOOKS = "_ZN2at6detail12getCUDAHooksEv"
CUDA, LAZY = 1, 17
MOST_FUNCTIONS = 256
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""What hides devices of this machine from a build for CUDA: the script gets those that are not there."""

WORD = ctypes.sizeof(ctypes.c_void_p)
_kept = []
"""Tables and functions that C++ points to."""


def begin():
    """Return None, or why a CUDA device cannot be pretended in this build of torch."""
    import torch
    import torch._subclasses.fake_tensor as fake

    torch.autograd.set_multithreading_enabled(
        False
    )  # the backward pass runs in the thread that asks for it, as on CPUs
    fake.FakeTensorMode.avoid_device_init = property(lambda mode: True)
    fake.init_gpu_context = lambda *args: None
    try:
        stand_in_for_guard(torch)
        answer_for_library(torch)
    except (OSError, AttributeError, ValueError, RuntimeError) as error:
        return "{}: {}".format(type(error).__name__, error)
    return None


def library(torch, name):
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    for suffix in (".so", ".dylib"):
        path = os.path.join(folder, "lib" + name + suffix)
        if os.path.exists(path):
            return ctypes.CDLL(path)
    raise OSError("torch has no lib" + name)


def stand_in_for_guard(torch):
    guards = (ctypes.c_void_p * (LAZY + 1)).in_dll(library(torch, "c10"), GUARDS)
    if not guards[CUDA]:
        # That of a backend without devices: torch replaces a guard that has none.
        guards[CUDA] = guards[LAZY]
        torch._C._ensureCUDADeviceGuardSet()
        if guards[CUDA] == guards[LAZY]:
            guards[CUDA] = None
            raise ValueError("torch kept the guard")
        return
    before = {name: os.environ.get(name) for name in HIDING}
    os.environ.update(dict.fromkeys(HIDING, ""))
    torch._C._ensureCUDADeviceGuardSet()  # counts the devices, once for the process: there are none
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def answer_for_library(torch):
    get = library(torch, "torch_cpu")[HOOKS]
    get.restype, get.argtypes = ctypes.c_void_p, []
    table = ctypes.c_void_p.from_address(get())
    before = table.value
    entries = [ctypes.c_void_p.from_address(before + WORD * n).value for n in range(-2, MOST_FUNCTIONS)]
    entries = entries[: entries.index(None, 2)] if None in entries[2:] else entries

    def put(functions):
        words = (ctypes.c_void_p * len(functions))(*functions)
        _kept.append(words)
        table.value = ctypes.addressof(words) + 2 * WORD

    def asked(run):
        """Return which functions a call asks; each of them answers no."""
        seen = set()
        put(
            [
                entry if n < 2 or entry in answers else function(lambda this, n=n: bool(seen.add(n)))
                for n, entry in enumerate(entries)
            ]
        )
        try:
            run()
        finally:
            table.value = before
        return seen

    yes, no = function(lambda this: True), function(lambda this: False)
    answers = (yes, no)
    for n in asked(torch._C._accelerator_getAccelerator):
        entries[n] = yes
    for n in asked(lambda: tiny_backward(torch)):
        entries[n] = no
    put(entries)


def function(call):
    pointer = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(call)
    _kept.append(pointer)
    return ctypes.cast(pointer, ctypes.c_void_p).value


def tiny_backward(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(2, 2, device="cuda:0", requires_grad=True)
        y = x + x
        (y @ y * y).sum().backward()
