"""Consent: the disclosures of a job are described in a sheet, accepted by people, and refused by leak checks."""
