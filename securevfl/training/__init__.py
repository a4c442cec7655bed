"""One training: one party's run, its checkpoints, its part of the model, and a run of all parties in one process."""
