"""Trace files -> columnar Events -> pure analyses. Nobody outside this package sees raw JSON."""
