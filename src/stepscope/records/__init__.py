"""Frozen dataclasses for everything stored. Base units in the name (``_ns``, ``_bytes``); tuples, not lists."""
