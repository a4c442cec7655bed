"""Training by rounds: in each round, parties add up their model outputs, and one sends back a residual."""
