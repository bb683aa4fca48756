"""Rules, one file each: ``RULE``. A file's stem with hyphens is the rule's name: ``launch_bound.py`` is ``launch-bound``."""

from __future__ import annotations

from stepscope.core.registry import Registry
from stepscope.diagnose.rule import Rule

REGISTRY: Registry[Rule] = Registry("stepscope.diagnose.rules", "RULE", "rule")
