"""The ledger of scores: what a party has let others score and measure, stored in one SQLite file."""
