"""Training on secret shares: no party sees a weight, a score, a residual or another party's columns.

Every such number is the sum, modulo 2^L, of random-looking integers ("shares") at different parties. The party with
labels and its partner, the share holders, have shares of everything; every other party has shares of its own weights.
The offline phase (offline_phase.py) computes random products in advance, and every iteration of the training
(iteration.py) uses some of them up.
"""
