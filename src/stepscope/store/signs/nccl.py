"""What NCCL and RCCL say before they give up."""

from __future__ import annotations

from stepscope.store.signs import SignForm

SIGNS = (
    SignForm(
        "nccl-no-route", b"No route to host", rb"(?:to|remote address) (?P<peer>[\d.]{7,15})<?\S* ?.*?No route to host"
    ),
    SignForm("nccl-shm-full", b"No space left on device", rb"(?P<path>/dev/shm/\S+?)[ ,].*?No space left on device"),
)
