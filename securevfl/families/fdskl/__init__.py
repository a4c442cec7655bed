"""Training by phases of random features."""
