"""Disclosures: what runs reveal about a party's table, counted from public sizes, recorded and limited.

A *ledger* records them for one party. A *leak* is a disclosure beyond what a job's protocol declares.
"""
