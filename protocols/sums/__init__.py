"""Sum protocols: one party learns the sum of other parties' outputs. In the clear, masked, or encrypted."""
