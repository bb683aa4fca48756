"""Starting worker groups and judging how they ended."""
