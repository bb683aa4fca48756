"""One judge of an end: what is known of it (evidence), who gathers that (cell, job), who is at fault (judge, timeouts)."""
