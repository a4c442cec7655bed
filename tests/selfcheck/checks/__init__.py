"""Checks of the library against its declarations: transcripts (all messages of a run),
engines, frames, secrets, randomness.
"""
