"""What a job discloses to whom: described, consented to, and refused before anything runs."""
