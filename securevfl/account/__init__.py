"""A party's account: an SQLite file with all that the party has disclosed, its limits and its checkpoints' records.

It is protected against loss and against replacement by an older copy. The user calls it the disclosure ledger.
"""
