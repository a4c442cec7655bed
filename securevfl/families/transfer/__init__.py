"""Transfer learning between two parties with few overlapping rows."""
