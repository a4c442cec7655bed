"""Runs that record what every party did, sent and received, for the checks and attacks of an audit."""
