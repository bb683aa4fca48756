"""Time and memory of one training step, from model, GPU, cluster and layout alone. Offline, standard library only."""
