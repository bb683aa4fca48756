"""Compiled from event_scan.c where there is a C compiler; traces/scan.py does without where there is none."""

class Scanner: ...

def scanner(keys: list[tuple[bytes, int]], may_be_text: int, /) -> Scanner: ...

_Scanned = (
    tuple[
        tuple[bytes, ...],
        list[bytes],
        list[bytes],
        list[tuple[bytes, bytes]],
        list[tuple[bytes, bytes]],
        list[bytes],
    ]
    | None
)

def scan(scanner: Scanner, block: bytes, /) -> _Scanned: ...
def scan_device(
    scanner: Scanner, block: bytes, device: tuple[bytes, ...], unknown: tuple[bytes, ...], /
) -> _Scanned: ...
