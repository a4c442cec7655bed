"""Residual protocols: passive parties learn J^T g for a residual g. In the clear, with noise, or encrypted."""
