"""Disclosures: what runs reveal about a party's table, counted from public sizes, recorded and limited.

A *ledger* is a party's record of them. A *leak* is a disclosure beyond those that the job's protocol declares; a job
must accept it by name.
"""
