"""Collectives that did not end: torch's NCCL watchdog, its monitors, gloo's barrier, mismatched calls."""

from __future__ import annotations

from stepscope.store.signs import SignForm

SIGNS: tuple[SignForm, ...] = ()
