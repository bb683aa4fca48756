"""``stepscope hardware``: peak rates of accelerators and links, with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.cli.command import Command, Options, argument, switch
from stepscope.core.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from stepscope.machine.peaks import Accelerator
    from stepscope.machine.peaks.rates import LinkPeak


class Hardware(Options):
    """List accelerators and links with their dense peaks, or look up one GPU.

    Rates are dense (no sparsity), matrix units with FP32 accumulation; links count one direction.
    """

    name: tuple[str, ...] = argument(
        "A GPU as torch or nvidia-smi prints it, or a key of the table.", "NAME", default=()
    )
    json: bool = switch("Print one JSON document.")


_DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")


def run(options: Hardware) -> int:
    """Print the tables, or one entry; the exit code."""
    from stepscope.cli.console import print_document
    from stepscope.machine.peaks import ACCELERATORS, find
    from stepscope.machine.peaks.lookup import why_unknown
    from stepscope.machine.peaks.rates import LINKS

    if not options.name:
        if options.json:
            print_document(_document(ACCELERATORS, LINKS))
        else:
            _show_tables()
        return 0
    name = " ".join(options.name)
    entry = find(name)
    if isinstance(entry, Unavailable):
        raise UsageError(why_unknown(name), fix="`stepscope hardware` lists the known ones")
    if options.json:
        print_document(_document((entry,), ()))
    else:
        _show_one(entry)
    return 0


def _document(accelerators: tuple[Accelerator, ...], links: tuple[LinkPeak, ...]) -> dict[str, Any]:
    """Return the document, schema stepscope.hardware/1. A rate that a device does not have is null."""
    from dataclasses import asdict

    from stepscope.records.codec import headed

    document: dict[str, Any] = {**headed("hardware/1"), "accelerators": [_entry(entry) for entry in accelerators]}
    if links:
        document["links"] = [asdict(link) for link in links]
    return document


def _entry(entry: Accelerator) -> dict[str, Any]:
    link = entry.link
    return {
        "key": entry.key,
        "name": entry.name,
        "vendor": entry.vendor,
        "form": entry.form,
        "memory_bytes": entry.memory_bytes,
        "total_bytes": entry.total_bytes,
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
    """Write TFLOP/s with at most four digits."""
    return "–" if value is None else f"{value / 1e12:.4g}"


def _show_tables() -> None:
    from stepscope.cli.console import say
    from stepscope.cli.findings import plain_table, print_block
    from stepscope.core.units import format_bandwidth
    from stepscope.machine.peaks import ACCELERATORS
    from stepscope.machine.peaks.rates import LINKS

    rates = (f"{dtype}\nTFLOP/s" for dtype in _DTYPES)
    table = plain_table("key", right=("memory\nGB", "memory\nGB/s", *rates, "link\nGB/s"))
    for entry in ACCELERATORS:
        link = "–" if entry.link is None else f"{entry.link.bytes_per_s / 1e9:.4g}{'*' if entry.link.optional else ''}"
        memory = f"{entry.memory_bytes / 1e9:.0f}", f"{entry.memory_bytes_per_s / 1e9:.0f}"
        table.add_row(entry.key, *memory, *(_rate(entry.peak_flops_per_s.get(dtype)) for dtype in _DTYPES), link)
    print_block(table)
    say(
        "dense rates; fp32 on the vector units, the others on the matrix units with FP32 accumulation\n"
        "link: all links of one device, one direction; * a bridge that a card may be without; – has none\n"
        "stepscope hardware KEY shows the source and what a device is commonly confused with\n",
        "dim",
    )
    table = plain_table("link", right=("one direction",))
    table.add_column("", overflow="fold")
    for link_peak in LINKS:
        table.add_row(link_peak.key, format_bandwidth(link_peak.bytes_per_s), link_peak.name)
    print_block(table)
    say(f"sources: {'; '.join(dict.fromkeys(link_peak.source for link_peak in LINKS))}", "dim")


def _show_one(entry: Accelerator) -> None:
    from rich.text import Text

    from stepscope.cli.console import say
    from stepscope.cli.findings import show_facts
    from stepscope.core.units import format_bandwidth, format_bytes
    from stepscope.core.words import counted
    from stepscope.machine.peaks.rates import pcie_bytes_per_s

    title = Text(f"{entry.vendor} {entry.name}", style="bold")
    say(title + Text(f"  ({entry.key}, {entry.form})", style="dim"))
    facts: list[tuple[str, str | Text]] = []
    for dtype in _DTYPES:
        rate, units = entry.peak_flops_per_s.get(dtype), "vector units" if dtype == "fp32" else "dense"
        facts.append((dtype, Text("none", style="dim") if rate is None else f"{_rate(rate)} TFLOP/s {units}"))
    usable = f" as sold, {format_bytes(entry.total_bytes)} to use" if entry.total_bytes != entry.memory_bytes else ""
    bandwidth = format_bandwidth(entry.memory_bytes_per_s)
    facts.append(("memory", f"{format_bytes(entry.memory_bytes)}{usable}, {bandwidth}"))
    link = entry.link
    if link is not None:
        text = f"{link.name}, {counted(link.count, 'link')}: {format_bandwidth(link.bytes_per_s)} per direction"
        if link.peer_links != link.count:
            text += f", {format_bandwidth(link.peer_bytes_per_s)} to one peer"
        facts.append(("link", text + (" (with a bridge, sold apart)" if link.optional else "")))
    if entry.pcie is not None:
        pcie_rate = pcie_bytes_per_s(*entry.pcie)
        speed = f": {format_bandwidth(pcie_rate)} per direction" if isinstance(pcie_rate, float) else ""
        facts.append(("PCIe", f"{entry.pcie[0]}.0 x{entry.pcie[1]}{speed}"))
    facts.append(("source", f"{entry.source} ({entry.date})"))
    if entry.confused_with:
        facts.append(("note", Text(entry.confused_with, style="yellow")))
    show_facts(facts)


COMMAND = Command(options=Hardware, where="stepscope.cli.commands.hardware", panel="Look at a machine")
