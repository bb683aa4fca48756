"""Accelerator and link peaks as data, and the look-up of a GPU's name. Standard library only."""

from stepscope.machine.peaks.accelerators import ACCELERATORS
from stepscope.machine.peaks.lookup import find
from stepscope.machine.peaks.rates import Accelerator, LinkSpec

__all__ = ["ACCELERATORS", "Accelerator", "LinkSpec", "find"]
