"""Predictions against published and measured tables: ``python -m benchmarks.validate DIR [--json]``."""
