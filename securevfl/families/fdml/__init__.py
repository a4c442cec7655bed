"""Asynchronous training with bounded staleness (FDML)."""
