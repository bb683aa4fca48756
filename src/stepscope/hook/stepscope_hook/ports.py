"""Counters of the network ports of this host: the kernel's files of InfiniBand, RoCE and network interfaces."""

import os

from stepscope_hook.devices import Increase
from stepscope_hook.record import NAN
from stepscope_hook.samples import read

INFINIBAND, NET = "/sys/class/infiniband", "/sys/class/net"
MOST_PORTS = 32

COLUMNS = (
    ("received_bytes", "port_rcv_data", "statistics/rx_bytes"),
    ("sent_bytes", "port_xmit_data", "statistics/tx_bytes"),
    ("receive_errors", "port_rcv_errors", "statistics/rx_errors"),
    ("send_errors", None, "statistics/tx_errors"),
    ("receive_drops", None, "statistics/rx_dropped"),
    ("send_drops", "port_xmit_discards", "statistics/tx_dropped"),
    ("symbol_errors", "symbol_error", None),
    ("integrity_errors", "local_link_integrity_errors", None),
    ("recoveries", "link_error_recovery", None),
    ("downs", "link_downed", "carrier_down_count"),
)
"""Column, its file in an InfiniBand port's counters, and in a network interface's folder; None: it has none."""
WORDS = 4
"""Bytes of a word, in which InfiniBand counts its data."""


class Port:
    """A port. kind: infiniband (RoCE too) or net."""

    columns = tuple(row[0] for row in COLUMNS)

    def __init__(self, name, kind, folder):
        self.name, self.kind = name, kind
        self.missing = {}
        self.counted = []
        for column, infiniband, net in COLUMNS:
            file = infiniband if kind == "infiniband" else net
            path = file and os.path.join(folder, file)
            unit = WORDS if kind == "infiniband" and column.endswith("_bytes") else 1
            self.counted.append((column, path, unit, Increase()))
        self.read()
        self.counted = [
            (column, None if column in self.missing else path, *rest) for column, path, *rest in self.counted
        ]

    def facts(self):
        return {"name": self.name, "kind": self.kind, "missing": self.missing}

    def read(self):
        """Return a number for each column since the first call; NaN where the port has no such counter, or it cannot be
        read."""
        return [self.count(*counter) for counter in self.counted]

    def count(self, column, path, unit, counter):
        if path is None:
            return NAN
        text = read(path).strip()
        if not text.isdigit():
            self.missing.setdefault(column, "{} cannot be read".format(path))
            return NAN
        return counter.since_first(unit * int(text))


def ports():
    """Return the ports of this host; of interfaces the physical ones, where there is one: a bridge counts the same bytes
    again."""
    of_host = []
    for card in listed(INFINIBAND):
        for number in listed(os.path.join(INFINIBAND, card, "ports")):
            folder = os.path.join(INFINIBAND, card, "ports", number, "counters")
            of_host.append(Port("{}/{}".format(card, number), "infiniband", folder))
    interfaces = [interface for interface in listed(NET) if interface != "lo"]
    physical = [interface for interface in interfaces if os.path.exists(os.path.join(NET, interface, "device"))]
    of_host += [Port(interface, "net", os.path.join(NET, interface)) for interface in physical or interfaces]
    return of_host[:MOST_PORTS]


def listed(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
