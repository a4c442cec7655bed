"""Asynchronous training with bounded staleness (FDML): parties continue without waiting, up to a limit."""
