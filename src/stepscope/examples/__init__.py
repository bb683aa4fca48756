"""Generated job folders with planted truth: what ``stepscope example`` writes."""
