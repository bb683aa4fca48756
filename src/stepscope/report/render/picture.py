"""A described chart as SVG, PNG or PDF; the same description gives the same bytes. Nothing is loaded before it is drawn."""

from __future__ import annotations

import re
import struct
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from stepscope.core.errors import MissingError, Unavailable
from stepscope.core.units import format_bytes_binary
from stepscope.report.vega import resolved

Work = tuple[str, str, str, tuple["Format", ...]]
"""(spec as JSON, title, caption, formats)."""

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")

DPI = 300

VEGA_LITE = "6.4"
"""The version of vl-convert's own that draws."""

ADDRESSES = 66 << 30
"""Bytes of addresses that vl-convert's engine reserves, with a margin: where it does not get them it ends its process."""

_MARK = re.compile(
    r'<(path|rect|line)([^>]*?) aria-label="([^"]*)" role="[^"]*" aria-roledescription="[^"]*"([^>]*?)/>'
)
_NOISE = re.compile(
    r' (?:aria-hidden="true"|pointer-events="none"|role="graphics-[^"]*"|aria-roledescription="[^"]*"'
    r'|class="(?:mark|role|background|foreground|marks)[^"]*"|opacity="1"|aria-label="[^"]*"|xmlns:xlink="[^"]*"'
    r'|stroke-miterlimit="10"|version="1.1"|transform="translate\(0,0\)")'
)
_NOTHING = re.compile(r'<path(?: aria-hidden="true")?(?: class="[^"]*")?(?: aria-hidden="true")? d=""[^>]*/>')
_GROUND = re.compile(r'<path[^>]*class="background"[^>]*d="M0(?:\.5)?,0(?:\.5)?h0v0h0Z"[^>]*/>')
_LONG = re.compile(r"(-?\d+\.\d\d)\d+(?=[^<>]*>)")
"""A hundredth of a point is enough for a place; texts keep their digits."""
_EMPTY = re.compile(r"<g(?: [^>]*)?></g>")


def drawn(work: Work) -> tuple[bytes, ...] | Unavailable:
    """Return the pictures, or why they cannot be drawn here."""
    try:
        return pictures(work)
    except MissingError as error:
        return Unavailable(error.line)
    except BaseException as error:
        # of vl-convert, whose panics are no Exception and have no class to import
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            return Unavailable(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        raise


def pictures(work: Work) -> tuple[bytes, ...]:
    """Return the SVG with the page's colours, then a file for each format. Raises MissingError where none can be drawn."""
    spec, title, caption, formats = work
    drawn = page_svg(spec)
    alone = resolved(drawn)
    return (drawn.encode(), *(_picture_file(alone, name, title, caption) for name in formats))


def page_svg(spec: str) -> str:
    """Return the description as an SVG whose colours are CSS variables and whose marks have ``<title>``s."""
    _need_addresses()
    import vl_convert

    return _plain_svg(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE))


@cache
def _need_addresses() -> None:
    """Raise MissingError where the process may have too few addresses for the renderer."""
    if sys.platform != "linux":
        return
    from resource import RLIM_INFINITY, RLIMIT_AS, getpagesize, getrlimit

    limit = getrlimit(RLIMIT_AS)[0]
    if limit == RLIM_INFINITY:
        return
    left = limit - int(Path("/proc/self/statm").read_text().split()[0]) * getpagesize()
    if left < ADDRESSES:
        needed, had = format_bytes_binary(ADDRESSES), format_bytes_binary(left)
        raise MissingError(
            f"drawing reserves {needed} of addresses, and `ulimit -v` leaves {had}",
            fix="`ulimit -v unlimited`: the limit is of addresses, not of memory",
        )


def inside(svg: str, prefix: str, title: str) -> str:
    """Return ``svg`` for a page that holds others: as wide as its place, with names of its own."""
    svg = re.sub(r'(id="|url\(#)', rf"\1{prefix}", svg)
    svg = re.sub(r' (?:width|height)="[\d.]+"', "", svg, count=2)
    return svg.replace("<svg ", f'<svg role="group" tabindex="0" aria-label={quoteattr(title)} ', 1)


def _plain_svg(svg: str) -> str:
    """Leave out what says nothing; what a mark tells is its ``<title>``: shown under the pointer, read by screen readers."""
    svg = _GROUND.sub("", _NOTHING.sub("", svg))
    svg = _MARK.sub(r"<\1\2\4><title>\3</title></\1>", svg)
    svg = _NOISE.sub("", svg)
    # names count on from picture to picture
    for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]*)"', svg))):
        svg = svg.replace(f'id="{name}"', f'id="n{number}"').replace(f"url(#{name})", f"url(#n{number})")
    font = re.search(r' font-family="[^"]*"', svg)
    if font:  # once for all texts
        svg = svg.replace(font[0], "").replace("<svg", f"<svg{font[0]}", 1)
    svg = _LONG.sub(r"\1", svg)
    before = ""
    while before != svg:
        before, svg = svg, _EMPTY.sub("", svg)
    return svg


def _picture_file(svg: str, format_: Format, title: str, caption: str) -> bytes:
    """Return the picture as a file, with title and caption for whoever cannot see it or finds it alone."""
    import vl_convert

    if format_ == "pdf":
        pdf: bytes = vl_convert.svg_to_pdf(svg)
        return pdf
    if format_ == "png":
        drawn: bytes = vl_convert.svg_to_png(_on_white(svg), scale=1.0, ppi=DPI)
        return _with_texts(drawn, {"Title": title, "Description": caption})
    head, ground, rest = _on_white(svg).partition(">")
    head = re.sub(r'\b(width|height)="([\d.]+)"', r'\1="\2pt"', head, count=2)
    return f'{head} role="img"{ground}<title>{escape(title)}</title><desc>{escape(caption)}</desc>{rest}'.encode()


def _on_white(svg: str) -> str:
    """Put a white ground under the picture: alone it may be shown on anything."""
    head, end, rest = svg.partition(">")
    return f'{head}{end}<rect width="100%" height="100%" fill="white"/>{rest}'


def _with_texts(png: bytes, texts: dict[str, str]) -> bytes:
    """Return ``png`` with keyword -> text (UTF-8) behind its header."""
    after = 8 + 12 + 13  # signature; length, name and sum of the header; its fields
    chunks = (
        b"iTXt" + key.encode("latin-1") + b"\0\0\0\0\0" + text.encode(errors="replace") for key, text in texts.items()
    )
    return png[:after] + b"".join(map(_png_chunk, chunks)) + png[after:]


def _png_chunk(content: bytes) -> bytes:
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


def for_screens(spec: str, *, scale: int) -> bytes:
    """Return the description as a PNG of a third of the usual bytes: a notebook keeps them as text. Raises MissingError
    where none can be drawn."""
    _need_addresses()
    import vl_convert

    png = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=scale)
    at = first = png.index(b"IDAT") - 4
    pixels = b""
    while png[at + 4 : at + 8] == b"IDAT":
        size = int.from_bytes(png[at : at + 4])
        pixels += png[at + 8 : at + 8 + size]
        at += size + 12
    return png[:first] + _png_chunk(b"IDAT" + zlib.compress(zlib.decompress(pixels), 9)) + png[at:]
