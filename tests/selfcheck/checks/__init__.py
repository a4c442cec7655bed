"""What is held against the declarations: transcripts, engines, frames, secrets, randomness."""
