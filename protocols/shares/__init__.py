"""Training on additive shares, where nobody sees a weight, a score or a residual."""
