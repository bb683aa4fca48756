"""The link matrix of a machine: how each GPU and network card reaches each GPU."""

from __future__ import annotations

from stepscope.machine.topology import LINK_KINDS, Device, Topology
from stepscope.report.table import Column, Table, Value, said, tabled
from stepscope.report.view import View


def build(topology: Topology) -> Table:
    """One row a device, one column a GPU (its number alone, so that eight fit a narrow terminal)."""
    kinds = {link.kind for link in topology.links.values()}

    def cell(row: Device, gpu: Device) -> Value:
        if row is gpu:
            return said("·", tone="dim")
        link = topology.link(row.name, gpu.name)
        if link is None:
            return said("?", tone="bad")
        return said(link.label, tone="good" if link.is_nvlink else "warn" if link.crosses_socket else "plain")

    def column(gpu: Device) -> Column:
        return Column(f"to_{gpu.name}", gpu.name.removeprefix("GPU"), lambda row: cell(row, gpu))

    return tabled(
        "topology",
        "Links of the machine",
        (
            Column("device", "device", lambda row: row.label or row.name, role="identity", lead=True),
            *(column(gpu) for gpu in topology.gpus),
        ),
        topology.devices,
        footnotes=("; ".join(f"{kind}: {text}" for kind, text in LINK_KINDS.items() if kind in kinds),),
        notes=topology.problems,
    )


VIEW = View(key="topology", title="Links of the machine", needs=("topology",), table=build)
