"""The rank half: ``python -m stepscope.rank SPEC.json``, one process per rank. Imports torch; started, never called."""
