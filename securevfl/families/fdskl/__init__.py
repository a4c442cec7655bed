"""Training of kernel models on random features whose phases are summed (FDSKL)."""
