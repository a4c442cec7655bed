"""Modules of a training: one party's run, checkpoints and part of the model, and runs of all parties in one process."""
