"""Private alignment: which ids all parties have, and nothing of the others."""
