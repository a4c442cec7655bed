"""Checks against the declarations: transcripts, engines, frames, secrets, randomness."""
