"""Ground layer: errors, units, clock, registry. Standard library only."""
