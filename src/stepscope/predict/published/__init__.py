"""Published training runs: read, predicted, graded by question. Offline."""
