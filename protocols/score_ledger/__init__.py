"""The score ledger: a record in a party's account: which scores and metrics about its rows others have received."""
