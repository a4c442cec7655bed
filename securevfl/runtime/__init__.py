"""Channels between parties, their transport within one process, clocks, cost counters and executors."""
