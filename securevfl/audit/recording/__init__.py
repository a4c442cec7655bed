"""Runs that record what every party did, sent and received."""
