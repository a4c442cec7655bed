"""A party's account: one file that lists all that it has disclosed, protected against loss and against older copies."""
