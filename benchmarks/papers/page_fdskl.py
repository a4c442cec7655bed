"""FDSKL's sections of docs/results.md."""

from __future__ import annotations

from benchmarks.papers.page_cells import Part, number, spread, table


def fdskl_errors(part: Part) -> str:
    """Return the section on test errors."""
    cells = [
        [
            *(row["dataset"], row["method"], spread(row, "error", 4), f"{row['gamma']:g}" if "gamma" in row else ""),
            *(f"{row['eta']:g}" if "eta" in row else "", number(row["cpu_s"], 1)),
            number(row["bytes"] / 1e6, 0) if "bytes" in row else "",
        ]
        for row in part["rows"]
    ]
    plan = part["plan"]
    return (
        "### Test errors\n"
        f"Three parties, tree sum, {plan['splits']} splits (a9a: its own test rows, as many seeds; SVC one split). "
        "*The paper's step* is the update without a preconditioner, with the best step on training rows. CPU seconds "
        "are the least of the splits.\n\n" + table(["table", "method", "error", "gamma", "eta", "CPU s", "MB"], cells)
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
    """Return the section on training time by rows."""
    cells = [
        [row["method"], f"{row['rows']:,}", number(row["cpu_s"], 2), number(row["error"], 4)] for row in part["rows"]
    ]
    return (
        f"### Time by rows\n{part['plan']['table']}, one split; *FDSKL* is computed by one owner of all columns. "
        "Seconds of parties are the sum over all of them.\n\n"
        + table(["method", "rows", "CPU s", "error"], cells)
        + "\n![Seconds by rows](figures/fdskl-scaling.svg)\n"
    )
