"""How processes of a job ended: exceptions, signals, exit codes, out of memory, rendezvous."""

from __future__ import annotations

from stepscope.store.signs import SignForm

SIGNS: tuple[SignForm, ...] = (
    SignForm(
        "oom", b"out of memory",
        rb"(?:(?P<exception>[\w.]*OutOfMemoryError|RuntimeError): )?"
        rb"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)",
    ),
)  # fmt: skip
