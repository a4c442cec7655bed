"""The machinery of a run: channels between parties, disclosure gate, clocks, cost counters, executors and workers."""
