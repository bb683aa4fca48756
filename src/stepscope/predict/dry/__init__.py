"""What a step takes that a dry run recorded: kernels by roofline, the host that launches them, collectives beside them."""
