"""Other systems beside this one: the same tables, two processes each, one command.

    python -m benchmarks.peers --data ../shared/data
    python -m benchmarks.peers --data ../shared/data --only linear --again
    python -m benchmarks.peers --page

Each peer gets an environment of its own, of pinned versions (`pins/`), below ~/.cache/securevfl-peers; SecretFlow needs
Python 3.10, which pyenv or uv bring. A party is a process: one of a peer runs a script of `parties/` by the peer's own
documentation, one of ours the command `securevfl`, over mutual TLS. Both run over loopback, and through a relay of 300
Mbps and 20 ms that counts bytes.

`plans` has what is run, in which settings. Settings of a system stand in the order of their cost: it goes on until one
is within 0.001 of the AUC of the pooled table, or the next is no better. Rows go to `results/PART.json` as they are
done; the same command again runs what is missing, and what failed; `--again` runs all anew. docs/peers.md and the table
of README are drawn from these files (`page`). `--quick` runs everything small, on tables that are made up, and keeps
nothing.
"""
