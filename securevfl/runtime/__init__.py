"""Modules of a run: channels between parties, transport within one process, clocks, cost counters and executors."""
