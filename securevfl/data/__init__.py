"""A party's table: read, checked, scaled, cut into batches, and kept on disk where it is large."""
