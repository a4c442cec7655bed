"""Comparison of other systems (peers) with this one: the same tables, two processes each, one command.

    python -m benchmarks.peers --data ../shared/data
    python -m benchmarks.peers --data ../shared/data --only linear --again
    python -m benchmarks.peers --page

Each peer gets an environment of pinned versions (`pins/`) below ~/.cache/securevfl-peers. SecretFlow needs Python 3.10,
which pyenv or uv provide. A party is a process: one of a peer runs a script of `parties/` that follows the peer's
documentation, one of ours the command `securevfl` over mutual TLS. Both run over loopback, and through a relay of 300
Mbps and 20 ms that counts bytes.

`plans` lists the runs and their settings. The settings of a system are ordered by cost. The command tries them until
one is within 0.001 of the AUC of the pooled table, or until the next is no better. Rows are written to
`results/PART.json` one by one. If the same command is started again, it runs missing and failed rows; `--again` repeats
all. docs/peers.md and the table of README are generated from these files (`page`). `--quick` runs small versions on
generated tables and stores nothing.
"""
