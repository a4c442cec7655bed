"""A party's table: modules that read, check and scale it, divide it into batches, and store a large one on disk."""
