"""Measuring cells of kind comm on ranks: sweeps of collectives, pairs, matrix products, both at once."""
