"""The run folder: all its paths in one class, an atomic writer, readers."""
