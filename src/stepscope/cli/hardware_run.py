"""What ``stepscope hardware`` does: list the tables, or look one GPU up."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.cli.console import out, print_document
from stepscope.cli.findings import print_block
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.units import format_bandwidth, format_bytes
from stepscope.core.words import counted
from stepscope.machine.peaks import ACCELERATORS, Accelerator, find
from stepscope.machine.peaks.lookup import spelled_like
from stepscope.machine.peaks.rates import LINKS, LinkPeak, pcie_bytes_per_s
from stepscope.records.codec import headed

if TYPE_CHECKING:
    from stepscope.cli.commands.hardware import Hardware

_DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")


def run(options: Hardware) -> int:
    """Print the tables, or one entry; the exit code."""
    if not options.name:
        if options.json:
            print_document(_document(ACCELERATORS, LINKS))
        else:
            _show_table(out(), ACCELERATORS)
            _show_links(out(), LINKS)
        return 0
    name = " ".join(options.name)
    found = find(name)
    if isinstance(found, Unavailable):
        guess = None if ";" in found.reason else spelled_like(name)
        reason = f"{found.reason}; did you mean {guess!r}?" if guess and guess != name.lower() else found.reason
        raise UsageError(reason, fix="`stepscope hardware` lists the known ones")
    if options.json:
        print_document(_document((found,), ()))
    else:
        _show_one(out(), found)
    return 0


def _document(accelerators: tuple[Accelerator, ...], links: tuple[LinkPeak, ...]) -> dict[str, Any]:
    """Schema stepscope.hardware/1. A rate that a device does not have is null."""
    found: dict[str, Any] = {**headed("hardware/1"), "accelerators": [_entry(entry) for entry in accelerators]}
    if links:
        found["links"] = [asdict(link) for link in links]
    return found


def _entry(entry: Accelerator) -> dict[str, Any]:
    link = entry.link
    return {
        "key": entry.key,
        "name": entry.name,
        "vendor": entry.vendor,
        "form": entry.form,
        "memory_bytes": entry.memory_bytes,
        "memory_bytes_per_s": entry.memory_bytes_per_s,
        "peak_dense_flops_per_s": {dtype: entry.peak_flops_per_s.get(dtype) for dtype in _DTYPES},
        "link": link
        and {
            "name": link.name,
            "count": link.count,
            "bytes_per_s_per_direction": link.bytes_per_s,
            "peer_bytes_per_s_per_direction": link.peer_bytes_per_s,
            "optional": link.optional,
        },
        "pcie": entry.pcie and {"generation": entry.pcie[0], "lanes": entry.pcie[1]},
        "source": entry.source,
        "date": entry.date,
        "confused_with": entry.confused_with or None,
    }


def _rate(value: float | None) -> str:
    """TFLOP/s with at most four digits."""
    return "–" if value is None else f"{value / 1e12:.4g}"


def _show_table(console: Console, accelerators: tuple[Accelerator, ...]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column("key", style="cyan", no_wrap=True)
    for title in ("memory\nGB", "memory\nGB/s", *(f"{dtype}\nTFLOP/s" for dtype in _DTYPES), "link\nGB/s"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in accelerators:
        link = "–" if entry.link is None else f"{entry.link.bytes_per_s / 1e9:.4g}{'*' if entry.link.optional else ''}"
        table.add_row(
            entry.key,
            f"{entry.memory_bytes / 1e9:.0f}",
            f"{entry.memory_bytes_per_s / 1e9:.0f}",
            *(_rate(entry.peak_flops_per_s.get(dtype)) for dtype in _DTYPES),
            link,
        )
    print_block(console, table)
    console.print(
        Text(
            "dense rates; fp32 on the vector units, the others on the matrix units with FP32 accumulation\n"
            "link: all links of one device, one direction; * a bridge that a card may be without; – has none\n"
            "stepscope hardware KEY shows the source and what a device is commonly confused with",
            style="dim",
        )
    )
    console.print()


def _show_links(console: Console, links: tuple[LinkPeak, ...]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column("link", style="cyan", no_wrap=True)
    table.add_column("one direction", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for link in links:
        table.add_row(link.key, format_bandwidth(link.bytes_per_s), link.name)
    print_block(console, table)
    sources = "; ".join(dict.fromkeys(link.source for link in links))
    console.print(Text(f"sources: {sources}", style="dim"))


def _show_one(console: Console, entry: Accelerator) -> None:
    console.print(
        Text(f"{entry.vendor} {entry.name}", style="bold") + Text(f"  ({entry.key}, {entry.form})", style="dim")
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for dtype in _DTYPES:
        rate = entry.peak_flops_per_s.get(dtype)
        units = "vector units" if dtype == "fp32" else "dense"
        grid.add_row(
            f"  {dtype}",
            Text("none", style="dim") if rate is None else Text(f"{_rate(rate)} TFLOP/s {units}"),
        )
    grid.add_row("  memory", Text(f"{format_bytes(entry.memory_bytes)}, {format_bandwidth(entry.memory_bytes_per_s)}"))
    link = entry.link
    if link is not None:
        text = f"{link.name}, {counted(link.count, 'link')}: {format_bandwidth(link.bytes_per_s)} per direction"
        if link.peer_links != link.count:
            text += f", {format_bandwidth(link.peer_bytes_per_s)} to one peer"
        grid.add_row("  link", Text(text + (" (with a bridge, sold apart)" if link.optional else "")))
    if entry.pcie is not None:
        generation, lanes = entry.pcie
        rate_or_not = pcie_bytes_per_s(generation, lanes)
        rate_text = "" if isinstance(rate_or_not, Unavailable) else f": {format_bandwidth(rate_or_not)} per direction"
        grid.add_row("  PCIe", Text(f"{generation}.0 x{lanes}{rate_text}"))
    grid.add_row("  source", Text(f"{entry.source} ({entry.date})"))
    if entry.confused_with:
        grid.add_row("  note", Text(entry.confused_with, style="yellow"))
    print_block(console, grid)
