"""Transfer learning's sections of docs/results.md."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.page_cells import Part, Row, number, pick, rounds_cell, share, spread, starts, table, typical

MEASURED_MBPS = 300.0
SLOW_MBPS = (300.0, 10.0, 1.0)
"""Rates of the lines for which totals are computed."""


def ftl_paper(part: Part) -> str:
    """Return the section on the paper's split."""
    words = "default_credit as the paper cuts it: bills and payments (18 columns) with the labels, the client (15)."
    return _credit(part, "Credit-FTL, the paper's split", words)


def ftl_fate(part: Part) -> str:
    """Return the section on FATE's split."""
    return _credit(part, "Credit-FTL, FATE's split", "default_credit as FATE cuts it: 13 and 10 columns.")


def _credit(part: Part, title: str, words: str) -> str:
    rows, plan = part["rows"], part["plan"]
    top = plan["targets"][-1]
    cells = [
        [
            *(str(row["q"]), _openings(row), number(row["target"], 3), f"{row['step']:g}", rounds_cell(row)),
            *(number(row.get("open_s")), *_seconds(row), number(row.get("ckks_mb"))),
            *(f"{row['one_step']:g}", rounds_cell(row, "one_"), *_seconds(row, "one_"), number(row.get("one_ckks_mb"))),
        ]
        for row in rows
    ]
    head = [
        *("Q", "openings", "share", "own step", "rounds", "open s", "CKKS comp. s", "comm. s", "total s", "MB"),
        *("one step", "rounds", "CKKS comp. s", "comm. s", "total s", "MB"),
    ]
    one, five, ten = (pick(rows, q=q, one_opening=False, target=top) for q in (1, 5, 10))
    few, many = (pick(rows, q=q, one_opening=True, target=top) for q in (5, 10))
    return (
        f"### {title}\n{words} {plan['rows']:,} rows are shared and as many held out, {plan['units']} units, "
        f"{starts(plan)}. *Share* is of the AUC of logistic regression on the host's columns; *openings* are those of "
        "a round, one for each local step or one in all (`linearised`). Seconds under CKKS are split into computation "
        "(*comp.*, encryption included) and communication (*comm.*), as in the paper's Table 2.\n\n"
        + table(head, cells)
        + "\n**The paper** takes 46, 13 and 7 rounds with Q = 1, 5 and 10. **Ours** to the last share: "
        f"{_three(one, five, ten)} with own steps, {_three(one, five, ten, 'one_')} at one step; "
        f"with one opening a round {_three(one, few, many)} and {_three(one, few, many, 'one_')}. CKKS "
        f"bytes with Q = 10 are {share(many['ckks_mb'], one['ckks_mb'])} of those with Q = 1 with own steps and "
        f"{share(many['one_ckks_mb'], one['one_ckks_mb'])} at one where a round has one opening, and "
        f"{share(ten['ckks_mb'], one['ckks_mb'])} and {share(ten['one_ckks_mb'], one['one_ckks_mb'])} where every "
        "local step has its own: pieces times replies stay the same, so bytes a round grow as the root of the "
        "openings.\n\n" + _slow_lines(rows, top)
    )


def _slow_lines(rows: Sequence[Row], target: float) -> str:
    """Return the total seconds to the last target on slower lines, as in the last column of the paper's Table 2.

    Bytes take longer on a slower line; computation and the time of the measured line, of 300 Mbps, remain.
    """
    last = [row for row in rows if row["target"] == target and row.get("ckks_s") is not None]
    cells = [
        [
            *(str(row["q"]), _openings(row), number(row["ckks_computing_s"]), number(row["ckks_mb"])),
            *(number(row["ckks_s"] + 8 * row["ckks_mb"] * (1 / mbps - 1 / MEASURED_MBPS)) for mbps in SLOW_MBPS),
        ]
        for row in last
    ]
    head = ["Q", "openings", "comp. s", "MB", *(f"total s at {mbps:g} Mbps" for mbps in SLOW_MBPS)]
    best = [
        min(last, key=lambda row, mbps=mbps: row["ckks_s"] + 8 * row["ckks_mb"] * (1 / mbps - 1 / MEASURED_MBPS))
        for mbps in SLOW_MBPS
    ]
    words = "; ".join(
        f"Q = {row['q']}, openings: {_openings(row)}, at {mbps:g} Mbps"
        for row, mbps in zip(best, SLOW_MBPS, strict=True)
    )
    return (
        "Totals to the last share on slower lines, with own steps: both directions share the line, and computation is "
        "as above:\n\n" + table(head, cells) + f"\nThe least total is that of {words}.\n"
    )


def _seconds(row: Row, prefix: str = "") -> list[str]:
    """Return seconds of computation, communication, and both together, to the target under CKKS."""
    total, computation = row.get(f"{prefix}ckks_s"), row.get(f"{prefix}ckks_computing_s")
    communication = None if total is None or computation is None else total - computation
    return [number(computation), number(communication), number(total)]


def _openings(row: Row) -> str:
    return "one" if row["one_opening"] or row["q"] == 1 else "each"


def _three(one: Row, five: Row, ten: Row, prefix: str = "") -> str:
    return f"{number(typical(one, prefix))}, {number(typical(five, prefix))} and {number(typical(ten, prefix))}"


def ftl_small(part: Part) -> str:
    """Return the section on small steps."""
    rows, plan = part["rows"], part["plan"]
    setting = plan["setting"]
    cells = [
        [
            *(str(row["q"]), _openings(row), number(row["target"], 3), rounds_cell(row)),
            *(number(row["ckks_s"], 1), number(row["ckks_mb"], 1)),
            share(row["ckks_mb"], pick(rows, q=1, target=row["target"])["ckks_mb"]),
        ]
        for row in rows
    ]
    return (
        "### Credit-FTL at one small step\n"
        f"The paper's split, step {plan['step']:g} for all Q, {starts(setting)}, at most {setting['most']} rounds: "
        "where steps are small, local steps take the place of rounds, as in the paper, whose steps are not stated. "
        "Seconds and bytes are those of the median of the rounds.\n\n"
        + table(["Q", "openings", "share", "rounds", "CKKS s", "CKKS MB", "of Q = 1"], cells)
    )


def ftl_many(part: Part) -> str:
    """Return the section on many local steps."""
    plan = part["plan"]
    cells = [
        [
            *(row["algorithm"], str(row["q"]), f"{row['step']:g}"),
            " / ".join(number(item, 0) for item in row["rounds_medians"]),
            *(spread(row, "highest", 3), spread(row, "auc", 3)),
        ]
        for row in part["rows"]
    ]
    targets = " / ".join(f"{target:.2f}" for target in plan["targets"])
    return (
        "### Many local steps\n"
        "The paper's Figure 4 (?), and FedPBCD: left and right halves of scikit-learn's digits, even against odd, "
        f"{plan['rows']} rows in common and {plan['rows']} held out, {plan['units']} units, in the open, "
        f"{plan['rounds']} rounds, {plan['starts']} random starts, mu = {plan['mu']:g}. The step is the one of "
        f"{', '.join(f'{step:g}' for step in plan['grid'])} with the highest AUC after the last round on validation "
        "rows. Rounds are medians.\n\n"
        + table(["algorithm", "Q", "step", f"rounds to {targets}", "highest AUC", "AUC at the end"], cells)
    )


def ftl_overlap(part: Part) -> str:
    """Return the section on shared rows."""
    cells = [[f"{row['shared']:,}", row["model"], spread(row, "auc", 3)] for row in part["rows"]]
    return (
        "### AUC by shared rows\nThe paper's split of default_credit; scores of the host's rows by transfer, and "
        "logistic "
        "regression on the same rows.\n\n" + table(["shared rows", "model", "AUC"], cells)
    )


def ftl_step(part: Part) -> str:
    """Return the section on the cost of a step."""
    cells = [[f"{row['rows']:,}", str(row["units"]), number(row["cpu_s"], 2)] for row in part["rows"]]
    return (
        "### One sealed local step\nProcessor seconds of both sides under CKKS, the exchange before it included.\n\n"
        + table(["shared rows", "units", "CPU s"], cells)
    )
