"""The score ledger: an SQLite file in which a party records which scores and metrics about its rows others received."""
