"""What runs add up to: counted from public sizes, kept in a ledger, limited by its owner."""
