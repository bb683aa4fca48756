"""Matrices that come with the package; read by :mod:`stepscope.matrix.load`."""
