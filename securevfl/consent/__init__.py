"""What a job discloses to whom: described in a consent sheet, accepted by people, refused by leak checks."""
