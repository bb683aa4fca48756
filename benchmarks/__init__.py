"""stepscope's own figures: ratios against a named peer measured in the same run, with the A/A spread beside them."""

import os

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# What is timed starts as installed software does: compiled once, in the first round, for ours as for the peer.
