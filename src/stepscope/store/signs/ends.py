"""How processes of a job ended: exceptions, signals, exit codes, out of memory, rendezvous."""

from __future__ import annotations

from stepscope.store.signs import Form

SIGNS: tuple[Form, ...] = (
    Form(
        "oom", b"out of memory",
        rb"(?:(?P<exception>[\w.]*OutOfMemoryError|RuntimeError): )?(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)",
    ),
)  # fmt: skip
