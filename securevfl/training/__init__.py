"""One training: a party at work, its states, its part of the model, and a run of all parties in one process."""
