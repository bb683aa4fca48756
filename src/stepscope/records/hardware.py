"""What the hook samples of the hardware of a job: each rank's GPU and processors, and the network ports of each host.

``hook/stepscope_hook/hardware.py`` writes the files into ``.stepscope``; ``store/hardware.py`` reads them:

``devices-RRRRR-A.bin``: of the process of ``diary-RRRRR-A.bin``, once a second, after an hour every ten.
``load-RRRRR-A.bin``: likewise, and as the process ends: of the processors that it may use.
``ports-HOST-A.bin``: of one process a host, every ten seconds; A counts the processes that did it, as after a restart.

Each is one line of JSON (:class:`HardwareHeader`), then records, little-endian: Unix time as float64, finished steps of the
process as uint32, then for each source the float32 ``columns`` of the header. NaN: not known.

Columns of a device: ``sm_clock_hz``, ``memory_clock_hz``; ``power_w`` beside ``power_limit_w``, which is in force;
``temperature_c``; ``throttle_reasons``: bits of ``REASONS``; ``busy_fraction``: of the driver's last sampling period (up to
1 s) in which a kernel ran; ``memory_used_bytes``: of the whole device by all processes. Counted since the first sample:
``ecc_corrected``, ``ecc_uncorrected`` (memory errors), ``pcie_replays``, ``nvlink_errors`` (CRC errors, replays and
recoveries of all links).

Columns of a port, all counted since the first sample: ``received_bytes``, ``sent_bytes``, ``receive_errors``,
``send_errors``, ``receive_drops``, ``send_drops``, ``symbol_errors``, ``integrity_errors``, ``recoveries``, ``downs``.

Columns of a load, seconds since the sample before: ``busy_s``: that anybody used these processors, summed over them; CPU
time of the process (``process_s``), of its worker processes (``workers_s``) and of the command of stepscope
(``stepscope_s``); ``data_s``: in ``next()`` of loaders for training data, ``data_cpu_s``: of it CPU time of the training
thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.profile import RankProcess

IDLE = 0x1
REASONS: Mapping[int, str] = {
    IDLE: "idle",
    0x2: "clock setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x100: "display clock setting",
}
"""Bits of NVML's nvmlClocksEventReasons: why a clock is below its maximum."""


@record
class SampledDevice:
    """A GPU as the driver names it. Maxima are those of its kind; power_limit_default_w: as it was delivered.

    None: not known. missing: column, or one of these: why it is not known. Of a column that was known as the samples began
    the diary's events say it.
    """

    name: str
    bus_id: str
    uuid: str | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_max_hz: float | None = None
    power_limit_default_w: float | None = None
    memory_bytes: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@record
class SampledPort:
    """name: ``mlx5_0/1`` (card, port) or the network interface. kind: infiniband is RoCE, too. missing: as of a device."""

    name: str
    kind: Literal["infiniband", "net"]
    missing: Mapping[str, str] = field(default_factory=dict)


@record
class SampledLoad:
    """cpus: numbers of the processors that the process may use. missing: as of a device."""

    name: str
    cpus: tuple[int, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


@record
class HardwareHeader(RankProcess):
    """First line of a file of samples. missing: number of a CUDA device of the process: why nothing is known of it."""

    columns: tuple[str, ...]
    devices: tuple[SampledDevice, ...] = ()
    ports: tuple[SampledPort, ...] = ()
    load: tuple[SampledLoad, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[SampledDevice, ...] | tuple[SampledPort, ...] | tuple[SampledLoad, ...]:
        return self.devices or self.ports or self.load
