"""Tracebacks of Python: where each begins, its frames, and the line of its exception, which may be alone."""

from __future__ import annotations

from stepscope.store.signs import SignForm

_MESSAGE = rb"(?:: (?!\s*[-+\d.,%e]+\s*$)(?P<message>.*)|:?\s*$)"
_MODULE = rb"(?<![\w.])(?P<exception>(?:[A-Za-z_]\w*\.)*"
_SURE = (
    b"ArithmeticError", b"AssertionError", b"AttributeError", b"BrokenPipeError", b"ConnectionResetError",
    b"DistBackendError",
    b"DistNetworkError", b"DistStoreError", b"EOFError", b"FileNotFoundError", b"ImportError", b"IndexError", b"KeyError",
    b"KeyboardInterrupt", b"MemoryError", b"ModuleNotFoundError", b"NameError", b"NotImplementedError", b"OSError",
    b"OutOfMemoryError", b"PermissionError", b"RendezvousConnectionError", b"RendezvousTimeoutError", b"RuntimeError",
    b"TypeError", b"UnboundLocalError", b"UnicodeDecodeError", b"ValueError", b"ZeroDivisionError",
)  # fmt: skip
"""Exceptions that are one even where no traceback is there."""

_HARMLESS = (
    rb"Missing \"|.*libibverbs|.*libnccl-net|.*[Uu]sing internal|.*[Ii]gnor|.*deprecated|.*not supported, us|MSCCL"
)
"""Of NCCL's warnings those after which it goes on as well."""

SIGNS: tuple[SignForm, ...] = (
    SignForm("device-error", b"Cuda failure", rb"Cuda failure (?:\d+ )?'(?P<error>[^']{3,100})'"),
    SignForm("traceback", b"Traceback (most", rb"Traceback \(most recent call"),
    *(SignForm("exception", name, _MODULE + name + rb")" + _MESSAGE, cut=True, first=True) for name in _SURE),
    *(
        SignForm("exception", end, _MODULE + rb"[A-Z]\w*" + end + rb"|Exception)" + _MESSAGE, beside=True, first=True)
        for end in (b"Error", b"Exception", b"Interrupt", b"Exit", b"Iteration", b"Timeout", b"Exceeded")
    ),
    SignForm("chained", b"the above exception", rb"During handling of the above exception", beside=True),
    SignForm("chained", b"The above exception", rb"The above exception was the direct cause", beside=True),
    SignForm(
        "frame-of", b'File "', rb'File "(?P<file>[^"]+)", line (?P<at>\d+)(?:, in (?P<function>.+))?', beside=True
    ),
    SignForm("nccl-warning", b" NCCL WARN ", rb" NCCL WARN (?!" + _HARMLESS + rb")(?P<error>.{3,160})"),
    SignForm(
        "nccl-warning", b"Last error:",
        rb"Last error: (?:\[rank\d+\]: ?)?(?!Traceback|Exception raised|terminate |W0|E0)(?P<error>[A-Za-z].{5,160})",
    ),
)  # fmt: skip
