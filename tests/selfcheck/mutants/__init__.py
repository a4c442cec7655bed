"""Ways to break the library, each with the check that must notice."""
