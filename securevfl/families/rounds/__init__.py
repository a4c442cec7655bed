"""Training by rounds: parties send forward outputs into a sum, and receive a residual."""
