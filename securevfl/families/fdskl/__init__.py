"""Training of kernel models by sums of phases of random features (FDSKL)."""
