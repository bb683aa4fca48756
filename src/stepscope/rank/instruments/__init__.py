"""Torch instruments shared by the rank half and the monitor: step timers, regions, memory, gradient readiness."""
