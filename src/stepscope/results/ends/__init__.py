"""One judge of an end: what is known of it (evidence, stacks), and who is at fault (judge, timeouts)."""
