"""The audit as tests, packaged: `pytest --pyargs selfcheck`."""
