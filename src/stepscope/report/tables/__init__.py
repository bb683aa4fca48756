"""Tables, one file each: ``TABLE`` with what it needs and a pure function that builds it."""

from stepscope.core.registry import Registry
from stepscope.report.tables._common import TableKind

REGISTRY: Registry[TableKind] = Registry("stepscope.report.tables", "TABLE", "table")
