"""Training by rounds: a forward sum goes up, a residual goes down."""
