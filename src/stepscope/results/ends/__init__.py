"""One judge of an end: what is known of it (evidence, stacks; text: of a pasted log; memory: a failed request), and who
is at fault (judge, timeouts).
"""
