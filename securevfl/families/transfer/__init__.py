"""Transfer learning between two parties on few overlapping rows."""
