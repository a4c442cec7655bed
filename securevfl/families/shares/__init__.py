"""Training on additive shares."""
