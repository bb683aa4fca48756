"""Who gathers what is known of an end: of a cell, of a job. The judge is ``results/ends/``."""
