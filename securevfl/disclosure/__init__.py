"""Disclosures of runs: counted from public sizes, recorded in a ledger, limited by its owner."""
