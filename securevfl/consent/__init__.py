"""What a job tells whom, said and refused before anything runs."""
