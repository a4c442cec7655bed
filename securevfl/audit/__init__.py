"""What a run really tells each party: transcripts checked, views simulated, attacks carried out."""
