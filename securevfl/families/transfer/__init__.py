"""Transfer learning between two parties whose tables have few rows in common."""
