"""A party's table: read, checked, scaled, divided into batches, and stored on disk if it is large."""
