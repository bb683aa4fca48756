"""What several views are made of: names and figures of runs, curves, stacked bars, columns of traces."""
