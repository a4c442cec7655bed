"""FDSKL's sections of docs/results.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.page_cells import Part, Row, number, pick, spread, table

PEERS = Path(__file__).parents[1] / "peers" / "results" / "trees.json"
SHARED_TABLE = "default_credit"
"""The table of the trees in `benchmarks.peers`, whose number of training rows equals that of FDSKL's splits."""
STORED_BY = "526646ad"
"""The commit that stored the rows of `PEERS`, which do not name theirs."""


def fdskl_errors(part: Part) -> str:
    """Return the section on test errors, and the one on seconds against SecureBoost."""
    cells = [
        [
            *(row["dataset"], row["method"], spread(row, "error", 4), f"{row['gamma']:g}" if "gamma" in row else ""),
            f"{row.get('eta', row.get('C')):g}" if {"eta", "C"} & row.keys() else "",
            *(f"{row['rows']:,}" if "rows" in row else "", number(row["cpu_s"], 1)),
            number(row["bytes"] / 1e6, 0) if "bytes" in row else "",
        ]
        for row in part["rows"]
    ]
    plan = part["plan"]
    return (
        "### Test errors\n"
        f"Three parties, tree sum, {plan['splits']} splits (a9a: its own test rows, as many seeds; SVC "
        f"{plan['machine_splits']} splits, PP-SVMV one). *The paper's step* is the update without a preconditioner. "
        "The options of a method are chosen on a fifth of the training rows of the first split: FDSKL's gamma and eta, "
        f"and by the same rule gamma and C of the SVC, on at most {plan['tuned']:,} rows. PP-SVMV has the SVC's "
        f"options. Both have at most {plan['pooled']:,} training rows, which are all rows but those of ijcnn1: each "
        f"party of PP-SVMV stores n^2 numbers, {8 * plan['pooled'] ** 2 / 1e9:.1f} GB for {plan['pooled']:,} rows. "
        "CPU seconds are the least of the splits.\n\n"
        + table(["table", "method", "error", "gamma", "eta or C", "rows", "CPU s", "MB"], cells)
        + f"\n{_boosting(part['rows'])}\n{_seconds(part['rows'])}"
    )


def _boosting(rows: Sequence[Row]) -> str:
    """Compare FDSKL's errors with SecureBoost's."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    ours, trees = (
        {row["dataset"]: row["error"] for row in rows if row["method"].startswith(method)}
        for method in ("FDSKL, preconditioned", "SecureBoost")
    )
    lower = [name for name in names if trees[name] < ours[name]]
    figures = "; ".join(f"{name} {number(trees[name], 4)} and {number(ours[name], 4)}" for name in names)
    return (
        f"**SecureBoost has the lower error on {len(lower)} of {len(names)} tables** (SecureBoost and FDSKL, "
        f"preconditioned: {figures}). SecureBoost is lossless: its trees are those of boosting on the pooled columns, "
        "so scikit-learn's boosting with its defaults stands for its errors. The seconds of that row are not "
        "SecureBoost's, because nothing is encrypted.\n"
    )


def _seconds(rows: Sequence[Row]) -> str:
    """Compare FDSKL's seconds with those of SecureBoost in SecretFlow and of trees on shares, on one table."""
    peers = json.loads(PEERS.read_text(encoding="utf-8"))
    boosted, ours = (
        {line: pick(peers["rows"], system=system, line=line) for line in ("loopback", "far")}
        for system in ("secretflow-sgb", "ours-trees")
    )
    cells = [
        [row["method"], "3", number(row["cpu_s"], 1), number(row["bytes"] / 1e6, 0), f"error {number(row['error'], 4)}"]
        for row in rows
        if row["dataset"] == SHARED_TABLE and row["method"].startswith("FDSKL")
    ]
    cells += [
        [
            *(name, "2", number(lines["loopback"]["work_cpu_s"], 1), number(lines["far"]["bytes"] / 1e6, 0)),
            f"AUC {number(lines['loopback']['auc'], 4)}",
        ]
        for name, lines in (("SecureBoost: SecretFlow's SGB", boosted), ("trees on shares", ours))
    ]
    settings = boosted["loopback"]["settings"]
    return (
        "#### Seconds against SecureBoost\n"
        f"{SHARED_TABLE}, 22,500 training rows; processor seconds of training at all parties together. The rows of "
        f"trees are those of the [comparison with other systems](peers.md#trees), of {boosted['loopback']['date']} "
        f"(stored by commit {STORED_BY}), on another processor ({peers['machine']['processor']}), so do not compare "
        "their seconds with FDSKL's. They ran in two processes, and imports and scoring do not count. SGB has "
        f"{settings['trees']} trees of depth {settings['depth']} and encrypts by Okamoto-Uchiyama with "
        f"{settings['bits']} bits. FDSKL runs in one process, and masks sums instead "
        "of encrypting.\n\n" + table(["system", "parties", "CPU s", "MB", "held-out rows"], cells)
    )


def fdskl_progress(part: Part) -> str:
    """Return the section on the error during a training."""
    rows = [row for row in part["rows"] if row["epoch"] in (1, 2, 5, 10, 20, 40)]
    cells = [[row["method"], str(row["epoch"]), number(row["cpu_s"], 2), number(row["error"], 4)] for row in rows]
    return (
        f"### Error by time\n{part['plan']['table']}, one split, one owner of all columns; the paper's step is "
        f"{part['plan']['step']:g}.\n\n"
        + table(["update", "passes", "CPU s", "error"], cells)
        + "\n![Error by seconds](figures/fdskl-progress.svg)\n"
    )


def fdskl_scaling(part: Part) -> str:
    """Return the section on training time by rows and by parties."""
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(row["method"], f"{row['rows']:,}", number(row["cpu_s"], 2), number(row["error"], 4)),
            number(row["bytes"] / 1e6, 0) if "bytes" in row else "",
        ]
        for row in rows
    ]
    at_most = [row for row in rows if row["rows"] == max(plan["rows"]) and "parties" in row]
    few, many = (pick(at_most, parties=count) for count in (min(plan["parties"]), max(plan["parties"])))
    seconds, sent = (number(many[key] / few[key], 1) for key in ("cpu_s", "bytes"))
    return (
        f"### Time by rows\n{plan['table']}, one split; *FDSKL* is computed by one owner of all columns. Seconds of "
        "parties are the sum over all of them. Two parties have a direct sum, and more have a tree sum.\n\n"
        + table(["method", "rows", "CPU s", "error", "MB"], cells)
        + f"\nWith {few['rows']:,} rows, {many['parties']} parties together take {seconds} times the seconds of "
        f"{few['parties']}, and send {sent} times the bytes.\n\n![Seconds by rows](figures/fdskl-scaling.svg)\n"
    )
