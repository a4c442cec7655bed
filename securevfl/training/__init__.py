"""Training of one job: one party's run with checkpoints, all parties' runs in one process, and their results.

A *part* of a model is what one party stores of it: its weights, preparation and scaling.
"""
