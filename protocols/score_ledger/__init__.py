"""The score ledger: an SQLite file in which a party records how others have scored and evaluated its rows."""
