"""Consent: before a job runs, a *consent sheet* lists its disclosures, and people of each party accept or refuse it.

*Leak checks* refuse jobs that disclose more than their options accept. The *ledger* counts what all jobs have
disclosed.
"""
