"""Numbers from samples: medians with intervals, comparisons, end of warm-up, stop rule. Pure numpy."""
