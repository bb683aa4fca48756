"""The probes, a file for each kind of thing; each looks at one and returns facts or says why it cannot."""

from stepscope.core.registry import Registry
from stepscope.machine.probes import gpus, host, processors, torch  # noqa: F401 - fill the table
from stepscope.machine.probes._common import PROBES, Facts, Probe, ProbeContext

__all__ = ["REGISTRY", "Facts", "Probe", "ProbeContext"]

REGISTRY: Registry[Probe] = Registry("stepscope.machine.probes", "PROBE", "probe", table=PROBES)
