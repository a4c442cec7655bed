"""A party's account: one file with all that it has disclosed, protected against loss and against older copies."""
