"""Sum protocols: one party, the collector, learns the sum of the other parties' model outputs.

The outputs are sent in the clear, with random masks that cancel in the sum, or encrypted.
"""
