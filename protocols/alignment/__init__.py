"""Private set intersection: the parties learn the ids that all of them have, and nothing about other ids."""
