"""The score ledger: in a party's account, the record of the scores and metrics about its rows that others received."""
