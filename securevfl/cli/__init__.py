"""The command `securevfl`."""
