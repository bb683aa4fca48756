"""Accelerator and link peaks as data, and the look-up of a GPU's name. Standard library only."""

from stepscope.machine.peaks._common import Accelerator, LinkSpec
from stepscope.machine.peaks.lookup import ACCELERATORS, find

__all__ = ["ACCELERATORS", "Accelerator", "LinkSpec", "find"]
