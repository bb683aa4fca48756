"""Checks of NICs, host name and communication libraries."""

from __future__ import annotations

import ipaddress

from stepscope.core.units import format_bandwidth, format_bytes_binary
from stepscope.core.words import listed
from stepscope.machine.judging import (
    Outcome,
    check,
    failed,
    no_gpu_reason,
    passed,
    several_hosts,
    skipped,
    switched_on,
    variable,
    warned,
    why,
)
from stepscope.records.environment import EnvironmentRecord, NicFact


@check("network", "gloo")
def gloo(record: EnvironmentRecord) -> Outcome:
    """torch has the gloo backend, which CPU ranks need."""
    if record.torch is None:
        return skipped("torch does not respond")
    if record.torch.gloo:
        return passed("available")
    return failed("this torch was built without gloo", fix="install an official build of torch (pytorch.org)")


@check("network", "NCCL")
def nccl(record: EnvironmentRecord) -> Outcome:
    """torch has NCCL (RCCL on AMD), which GPU ranks need."""
    if record.torch is None:
        return skipped("torch does not respond")
    if record.torch.nccl:
        return passed(f"version {record.torch.nccl_version}" if record.torch.nccl_version else "available")
    if not record.torch.device_count:
        return skipped(no_gpu_reason(record))
    return failed("GPUs here, but this torch was built without NCCL", fix="install the CUDA build of torch for Linux")


@check("network", "host name")
def host_name(record: EnvironmentRecord) -> Outcome:
    """The own host name resolves to an address of this machine; gloo and torchrun's rendezvous rely on it."""
    addresses = record.hostname_addresses
    fix = f"add {record.host} to /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    if not addresses:
        return warned(f"{why(record, 'hostname_addresses', 'host')}; gloo then falls back to loopback", fix=fix)
    name_text = f"{record.host} is {listed(addresses, at_most=2)}"
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        if several_hosts(record) and variable(record, "GLOO_SOCKET_IFNAME") is None:
            return warned(
                f"{name_text}: other hosts cannot reach gloo there", fix="set GLOO_SOCKET_IFNAME to the NIC's name"
            )
        return passed(f"{name_text}, enough for ranks on one host")
    own = {address for nic in record.nics for address in nic.addresses}
    if own and not own & set(addresses):
        return warned(f"{name_text}, which is not an address of this machine: gloo cannot listen there", fix=fix)
    return passed(name_text)


@check("network", "socket interface")
def socket_interface(record: EnvironmentRecord) -> Outcome:
    """GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name interfaces that exist and are up."""
    settings = {name: variable(record, name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    if not any(settings.values()):
        return passed("not set: gloo uses the host name, NCCL the first suitable interface")
    interfaces = tuple(nic for nic in record.nics if not nic.rdma)
    if not interfaces:
        return skipped(why(record, "nics"))
    for name, value in settings.items():
        if value is None:
            continue
        chosen = gloo_choice(value, interfaces) if name.startswith("GLOO") else nccl_choice(value, interfaces)
        if not chosen:
            up = [nic.name for nic in interfaces if nic.up and nic.kind != "loopback"]
            return failed(
                f"{name}={value} matches no interface that is up", fix=f"choose from: {listed(up, at_most=8)}"
            )
    return passed(", ".join(f"{name}={value}" for name, value in settings.items() if value))


def gloo_choice(value: str, nics: tuple[NicFact, ...]) -> tuple[str, ...]:
    """Return the interfaces that gloo would take: its value holds full names, separated by commas."""
    names = value.split(",")
    return tuple(nic.name for nic in nics if nic.up and nic.name in names)


def nccl_choice(value: str, nics: tuple[NicFact, ...]) -> tuple[str, ...]:
    """Return the interfaces that NCCL would take by these prefixes: ``=`` before the list means full names, ``^`` all but
    these (NCCL user guide).
    """
    excluded, rest = value.startswith("^"), value.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    names = [name.partition(":")[0] for name in rest.split(",") if name]

    def hit(nic: NicFact) -> bool:
        return any(nic.name == name if exact else nic.name.startswith(name) for name in names)

    return tuple(nic.name for nic in nics if nic.up and hit(nic) != excluded)


SLOW_BITS_PER_S = 10_000_000_000


@check("network", "network speed")
def nic_speed(record: EnvironmentRecord) -> Outcome:
    """Speed of the fastest network interface, which bounds training across hosts."""
    outward = [nic for nic in record.nics if nic.up and nic.kind not in ("loopback", "virtual")]
    if not outward:
        return skipped(why(record, "nics") if "nics" in record.unavailable else "no interface reaches other machines")
    speeds = [(nic.speed_bits_per_s, nic.name) for nic in outward if nic.speed_bits_per_s]
    if not speeds:
        return skipped(
            f"{', '.join(nic.name for nic in outward)}: the driver reports no speed (normal in a virtual machine)"
        )
    speed, name = max(speeds)
    speed_text = f"{name}: {speed / 1e9:g} Gbit/s = {format_bandwidth(speed / 8)} per direction"
    if speed < SLOW_BITS_PER_S:
        return warned(f"{speed_text}, slow for training across hosts", fix="stay on one host, or use a faster network")
    return passed(speed_text)


@check("network", "RDMA")
def rdma(record: EnvironmentRecord) -> Outcome:
    """RDMA devices (InfiniBand, RoCE) are up and NCCL may use them."""
    devices = [nic for nic in record.nics if nic.rdma]
    if not devices:
        return skipped("no RDMA device on this machine")
    active = [nic.name for nic in devices if nic.up]
    if switched_on(variable(record, "NCCL_IB_DISABLE")):
        return warned(
            f"NCCL_IB_DISABLE=1 disables {listed(active or [d.name for d in devices])}: NCCL falls back to TCP",
            fix="unset NCCL_IB_DISABLE",
        )
    if not active:
        return warned(
            f"none of {listed([d.name for d in devices])} is active: NCCL falls back to TCP",
            fix="check cable and port with `ibstat` (`rdma link` for RoCE)",
        )
    return passed(f"{len(active)} of {len(devices)} active: {listed(active)}")


PINNING = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_BUFFSIZE")


@check("network", "debug variables")
def debug_variables(record: EnvironmentRecord) -> Outcome:
    """No variable is set that slows or pins what is to be measured."""
    settings = [
        f"{name}={value}"
        for name, loud in (
            ("NCCL_DEBUG", ("INFO", "TRACE")),
            ("TORCH_DISTRIBUTED_DEBUG", ("DETAIL", "INFO")),
            ("TORCH_CPP_LOG_LEVEL", ("INFO",)),
        )
        if (value := variable(record, name)) and value.upper() in loud
    ]
    settings += [
        f"{name}={variable(record, name)}"
        for name in (
            "CUDA_LAUNCH_BLOCKING",
            "TORCH_NCCL_BLOCKING_WAIT",
            "NCCL_BLOCKING_WAIT",
            "TORCH_SHOW_CPP_STACKTRACES",
        )
        if switched_on(variable(record, name))
    ]
    settings += [f"{name}={value}" for name in PINNING if (value := variable(record, name))]
    if settings:
        names = " ".join(item.partition("=")[0] for item in settings)
        return warned(f"{listed(settings)}: timings are not those of a normal run", fix=f"unset {names}")
    return passed("no debugging or tuning variable is set")


@check("network", "locked memory")
def locked_memory(record: EnvironmentRecord) -> Outcome:
    """RDMA registers memory, which counts against the limit on locked memory."""
    if not any(nic.rdma for nic in record.nics):
        return skipped("no RDMA device on this machine")
    if record.limits is None:
        return skipped(why(record, "limits", "host"))
    limit = record.limits.locked_memory_bytes
    if limit is None:
        return passed("unlimited")
    return warned(
        f"limited to {format_bytes_binary(limit)}: NCCL over RDMA fails to register its buffers",
        fix="ulimit -l unlimited (container: --ulimit memlock=-1)",
    )
