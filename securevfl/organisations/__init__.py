"""Commands of parties on separate machines: align, join, predict, score, compare, and the files they need."""
