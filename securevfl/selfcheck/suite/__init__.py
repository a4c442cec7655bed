"""The audit as tests, packaged: `pytest --pyargs securevfl.selfcheck`."""
