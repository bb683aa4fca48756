"""One file per probe; each looks at one thing and returns facts or says why it cannot."""

from stepscope.core.registry import Registry
from stepscope.machine.probes._common import Facts, Probe, ProbeContext

__all__ = ["REGISTRY", "Facts", "Probe", "ProbeContext"]

REGISTRY: Registry[Probe] = Registry("stepscope.machine.probes", "PROBE", "probe")
