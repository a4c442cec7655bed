"""Message protocols between roles, one a file. Imports as `securevfl.protocols`."""

if __name__ != "securevfl.protocols":
    raise ImportError(f"import this package as securevfl.protocols, not as {__name__!r}")
