"""An event as it stands in the text: typed structs, and how to read one whose fields have other types."""

from __future__ import annotations

from typing import Any

import msgspec

from stepscope.traces.events import NONE

NO_TEXT = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False, rename={
    "external_id": "External id", "sequence": "Sequence number", "forward_thread": "Fwd thread id",
    "dims": "Input Dims", "types": "Input type", "values": "Concrete Inputs", "collective": "Collective name",
    "in_elements": "In msg nelems", "out_elements": "Out msg nelems",
    "group_name": "Process Group Name", "group_description": "Process Group Description",
    "group_size": "Group size", "group_ranks": "Process Group Ranks", "group_sequence": "Seq",
    "comms_id": "Comms Id", "label": "name", "allocated": "Total Allocated", "reserved": "Total Reserved",
    "memory_bytes": "Bytes", "device_type": "Device Type", "device_id": "Device Id", "copied": "bytes",
    "copy_gb_per_s": "memory bandwidth (GB/s)", "source_rank": "Src Rank", "destination_rank": "Dst Rank",
}):  # fmt: skip
    correlation: int = NONE
    external_id: int = NONE
    stream: int | str = NONE
    device: int = NONE
    sequence: int = NONE
    forward_thread: int = NONE
    dims: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    values: msgspec.Raw = NO_TEXT
    copied: int | str = NONE
    copy_gb_per_s: float | None = None
    size: int | str = NONE
    flops: int = NONE
    collective: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    group_name: str | None = None
    group_description: str | None = None
    group_size: int | None = None
    group_ranks: msgspec.Raw = NO_TEXT
    group_sequence: int | None = None
    comms_id: int | None = None
    source_rank: int | None = None
    destination_rank: int | None = None
    label: msgspec.Raw = NO_TEXT
    labels: msgspec.Raw = NO_TEXT
    allocated: int = NONE
    reserved: int = NONE
    memory_bytes: int | None = None
    device_type: int = NONE
    device_id: int = NONE


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """As Event with the time as text, for absolute unix times that a float cannot hold."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NO_TEXT
    dur: float | None = None
    args: Args | None = None


class LooseEvent(msgspec.Struct, gc=False):
    """As ExactEvent with every field as text, to be read one by one: for events with a type nobody expects."""

    ph: msgspec.Raw = NO_TEXT
    cat: msgspec.Raw = NO_TEXT
    name: msgspec.Raw = NO_TEXT
    pid: msgspec.Raw = NO_TEXT
    tid: msgspec.Raw = NO_TEXT
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
    args: msgspec.Raw = NO_TEXT


DECODER = msgspec.json.Decoder(list[Event])
EXACT_DECODER = msgspec.json.Decoder(list[ExactEvent])
ONE_EXACT = msgspec.json.Decoder(ExactEvent)
ONE_LOOSE = msgspec.json.Decoder(LooseEvent)
RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_FIELDS = msgspec.structs.fields(Args)


def loosely(event: LooseEvent) -> ExactEvent:
    """What can be read of the event, each field by itself; the rest is as if not recorded."""
    args = Args()
    try:
        fields = _RAW_FIELDS.decode(event.args)
    except UNREADABLE:
        fields = {}
    for spec in _FIELDS:
        if spec.encode_name in fields:
            raw = fields[spec.encode_name]
            setattr(args, spec.name, raw if spec.type is msgspec.Raw else _read(raw, spec.type, spec.default))
    return ExactEvent(
        ph=_read(event.ph, str, ""), cat=_read(event.cat, str, ""), name=_read(event.name, str, ""),
        pid=_read(event.pid, int | str | None, None), tid=_read(event.tid, int | str | None, None),
        ts=event.ts, dur=_read(event.dur, float | None, None), args=args,
    )  # fmt: skip


def _read(raw: msgspec.Raw, kind: Any, otherwise: Any) -> Any:
    """The value as this type, from ``7``, ``7.0`` or ``"7"``; ``otherwise`` when it is something else."""
    if raw is NO_TEXT:
        return otherwise
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except UNREADABLE:
        return bytes(raw).strip(b'"').decode(errors="replace") if kind in (str, int | str | None) else otherwise
