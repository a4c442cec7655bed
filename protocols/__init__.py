"""Protocols: the messages that the parties of a training exchange, one protocol in each file.

Import this package as `securevfl.protocols`.
"""

if __name__ != "securevfl.protocols":
    raise ImportError(f"import this package as securevfl.protocols, not as {__name__!r}")
