"""Functions for parties on separate machines: align tables, join a training, predict, score and compare models."""
