"""From evidence (a run, a trace, imported results) to what is wrong, what it costs and what to do."""
