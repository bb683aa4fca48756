"""From a matrix file to the cells to run, and running them. Expansion, grouping, resuming and estimates are pure."""
