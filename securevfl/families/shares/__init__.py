"""Training on secret shares."""
