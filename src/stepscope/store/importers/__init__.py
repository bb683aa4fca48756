"""Readers of what other tools left behind, into this project's records."""
