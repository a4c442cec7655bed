"""Transfer learning's sections of docs/results.md."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.papers.page_cells import Part, Row, number, pick, rounds_cell, share, spread, starts, table, typical

MEASURED_MBPS = 300.0
SLOW_MBPS = (300.0, 10.0, 1.0)
"""Rates of the lines for which totals are computed."""
NEVER = float("inf")
ENGINE_NAMES = {"ckks": "CKKS", "paillier": "Paillier, 2,048 bits"}


def ftl_paper(part: Part) -> str:
    """Return the section on the paper's split."""
    words = "default_credit as the paper cuts it: bills and payments (18 columns) with the labels, the client (15)."
    return _credit(part, "Credit-FTL, the paper's split", words)


def ftl_fate(part: Part) -> str:
    """Return the section on FATE's split."""
    return _credit(part, "Credit-FTL, FATE's split", "default_credit as FATE cuts it: 13 and 10 columns.")


def _credit(part: Part, title: str, words: str) -> str:
    rows, plan = part["rows"], part["plan"]
    sealed = "ckks_s" in rows[0]
    cells = [
        [
            *(str(row["q"]), _openings(row), number(row["target"], 3), f"{row['step']:g}", rounds_cell(row)),
            *([*_seconds(row), number(row["ckks_mb"])] if sealed else ()),
            *(f"{row['one_step']:g}", rounds_cell(row, "one_")),
            *([*_seconds(row, "one_"), number(row["one_ckks_mb"])] if sealed else ()),
        ]
        for row in rows
    ]
    seconds = ["CKKS comp. s", "comm. s", "total s", "MB"] if sealed else []
    head = ["Q", "openings", "share", "own step", "rounds", *seconds, "one step", "rounds", *seconds]
    top = plan["targets"][-1]
    one, five, ten = (pick(rows, q=q, one_opening=False, target=top) for q in (1, 5, 10))
    few, many = (pick(rows, q=q, one_opening=True, target=top) for q in (5, 10))
    return (
        f"### {title}\n{words} {plan['rows']:,} rows are shared and as many held out, {plan['units']} units, "
        f"{starts(plan)}. *Share* is of the AUC of logistic regression on the host's columns; *openings* are those of "
        "a round, one for each local step or one in all (`linearised`). "
        + ("Seconds under CKKS are split into computation and communication. " if sealed else "")
        + "The section on Table 2 has seconds and bytes under encryption.\n\n"
        + table(head, cells)
        + "\n**The paper** takes 46, 13 and 7 rounds with Q = 1, 5 and 10. **Ours** to the last share"
        f"{'' if 'starts' not in plan else ' (medians)'}: "
        f"{_three(one, five, ten)} with own steps, {_three(one, five, ten, 'one_')} at one step; "
        f"with one opening a round {_three(one, few, many)} and {_three(one, few, many, 'one_')}.\n"
    )


def ftl_table2(part: Part) -> str:
    """Return the section on the rounds of FedBCD's Table 2."""
    rows, plan = part["rows"], part["plan"]
    setting = plan["setting"]
    cells = [[str(row["q"]), _openings(row), number(row["target"], 3), rounds_cell(row)] for row in rows]
    top = setting["targets"][-1]
    one, five, ten = (typical(pick(rows, q=q, one_opening=False, target=top)) for q in (1, 5, 10))
    return (
        "### Table 2: rounds\n"
        f"FedBCD's Table 2 on the paper's split: {setting['rows']:,} rows are shared and {plan['held_out']:,} held "
        f"out, {setting['units']} units, step {plan['step']:g} and weight decay {plan['l2']:g} for all Q, "
        f"{starts(setting)}, rounds to a share of the AUC of logistic regression on the host's columns. *Openings* are "
        "those of a round, one for each local step or one in all (`linearised`).\n\n"
        + table(["Q", "openings", "share", "rounds"], cells)
        + f"\n**The paper** takes 46, 13 and 7 rounds with Q = 1, 5 and 10 (0.28 and 0.15 of Q = 1). **Ours** to "
        f"{number(top, 3)}: {number(one)}, {number(five)} and {number(ten)} (medians; {share(five, one)} and "
        f"{share(ten, one)}).\n"
    )


def ftl_round_costs(part: Part) -> str:
    """Return the section on the costs of a round of FedBCD's Table 2."""
    plan = part["plan"]
    cells = [
        [
            *(str(row["q"]), _openings(row), number(row["computation_s"], 2)),
            *(number(row["communication_s"], 2), number(row["mb"], 2)),
        ]
        for row in part["rows"]
    ]
    return (
        f"### Table 2: costs of a round under {ENGINE_NAMES[part['rows'][0]['engine']]}\n"
        f"One round with {plan['setting']['rows']:,} shared rows. Computation is in processor seconds of both parties "
        "and their worker processes: encryption, products, decryption and local steps, without keys. Seconds of "
        "communication are virtual, at 300 Mbps and 20 ms.\n\n"
        + table(["Q", "openings", "computation s", "communication s", "MB"], cells)
    )


def ftl_totals(costs: Sequence[Row], rounds: Part) -> str:
    """Return the section on FedBCD's Table 2: costs of a round times the median of the rounds."""
    top = rounds["plan"]["setting"]["targets"][-1]
    text = [
        "### Table 2: computation, communication, total\n"
        f"The median of the rounds to {number(top, 3)} times the costs of a round, from the sections before, at "
        "three rates of the line, on which both directions share the rate. The total adds processor seconds of "
        "computation and virtual seconds of communication.\n"
    ]
    for engine, name in ENGINE_NAMES.items():
        chosen = [
            {**pick(rounds["rows"], q=row["q"], one_opening=row["one_opening"], target=top), **row}
            for row in costs
            if row["engine"] == engine
        ]
        if chosen:
            text.append(f"\n**{name}**\n\n{_table_of(chosen)}\n{_direction(chosen)}\n")
    return "".join(text) + (
        "\n**The paper** has less time the larger Q is. That needs rounds that cost more than local steps: a slow "
        "line, or one opening in each round.\n"
    )


def _table_of(rows: Sequence[Row]) -> str:
    head = ["Q", "openings", "rounds", "MB", "computation s"]
    head += [f"{what} s at {mbps:g} Mbps" for mbps in SLOW_MBPS for what in ("communication", "total")]
    cells = []
    for row in rows:
        rounds = typical(row)
        spent = None if rounds is None else rounds * row["computation_s"]
        cell = [str(row["q"]), _openings(row), rounds_cell(row)]
        cell += [number(None if rounds is None else rounds * row["mb"]), number(spent)]
        for mbps in SLOW_MBPS:
            total = _total(row, mbps)
            sent = None if total == NEVER or spent is None else total - spent
            cell += [number(sent), number(None if total == NEVER else total)]
        cells.append(cell)
    return table(head, cells)


def _total(row: Row, mbps: float) -> float:
    """Return seconds to the target on a line of this rate; bytes take longer on a slower line, round trips do not."""
    rounds = typical(row)
    if rounds is None:
        return NEVER
    slower = 8 * row["mb"] * (1 / mbps - 1 / MEASURED_MBPS)
    return rounds * float(row["computation_s"] + row["communication_s"] + slower)


def _direction(rows: Sequence[Row]) -> str:
    """Return on which lines more local steps with an opening each take less time, as in the paper."""
    by_q = sorted((row for row in rows if not row["one_opening"]), key=lambda row: float(row["q"]))
    names = ", ".join(str(row["q"]) for row in by_q)
    falling, rising, fastest = list[float](), list[float](), dict[str, list[float]]()
    for mbps in SLOW_MBPS:
        totals = [_total(row, mbps) for row in by_q]
        falls = all(later < earlier for earlier, later in itertools.pairwise(totals))
        (falling if falls else rising).append(mbps)
        least = min(rows, key=lambda row, mbps=mbps: _total(row, mbps))
        fastest.setdefault(f"Q = {least['q']} (openings: {_openings(least)})", []).append(mbps)
    change = f"falls from each to the next of Q = {names} at {_lines(falling)}" if falling else "falls at no bandwidth"
    if falling and rising:
        change += f", but not at {_lines(rising)}"
    shortest = ", and with ".join(f"{options} at {_lines(mbps)}" for options, mbps in fastest.items())
    return f"With an opening for each local step, the total {change}. It is least with {shortest}."


def _lines(mbps: Sequence[float]) -> str:
    """Return bandwidths as words, such as "300, 10 and 1 Mbps"."""
    *others, last = (f"{value:g}" for value in mbps)
    return f"{', '.join(others)} and {last} Mbps" if others else f"{last} Mbps"


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
    rows, plan = part["rows"], part["plan"]
    first, rounds = plan["first"], plan["rounds"]
    cells = [
        [
            *(f"{row['shared']:,}", row["model"], "-" if row["l2"] is None else f"{row['l2']:g}"),
            *(spread(row, key, 3) if key in row else "-" for key in ("early_auc", "auc", "training_auc")),
        ]
        for row in rows
    ]
    few = plan["overlaps"][0]
    small, large = plan["decays"]
    alone, over, decayed = (
        pick(rows, shared=few, model=model, l2=l2)
        for model, l2 in (("host's columns", None), ("transfer", small), ("transfer", large))
    )
    gaps = [
        abs(
            pick(rows, shared=shared, model="transfer", l2=large)["auc"]
            - pick(rows, shared=shared, model="host's columns", l2=None)["auc"]
        )
        for shared in plan["overlaps"]
    ]
    return (
        "### AUC by shared rows\n"
        f"The paper's split of default_credit: scores of the host's rows by transfer learning, with Q = {plan['q']} on "
        f"one opening, step {plan['step']:g}, 8 units, {rounds} rounds; and logistic regression on the guest's "
        "columns, the host's, and both. Every model trains on the shared rows, and is measured on the same "
        f"{plan['held_out']:,} held-out rows, in {plan['splits']} splits.\n\n"
        + table(
            ["shared rows", "model", "weight decay", f"AUC after {first} rounds", "AUC", "AUC on the training rows"],
            cells,
        )
        + "\n**Why transfer learning is below logistic regression on the host's columns**: it overfits. Its two "
        f"networks have 280 weights where logistic regression has 16. With {few:,} shared rows and a weight decay of "
        f"{small:g} its AUC is {number(over['training_auc'], 3)} on the training rows and {number(over['auc'], 3)} on "
        f"held-out rows. With a weight decay of {large:g} it is {number(decayed['training_auc'], 3)} and "
        f"{number(decayed['auc'], 3)}, where logistic regression has {number(alone['auc'], 3)} on the latter. With "
        f"this weight decay the two differ by at most {number(max(gaps), 3)} for each number of shared rows.\n\n"
        "**Why more shared rows add little**: the host's columns hold little about the label, for logistic regression "
        "too. A table with as few held-out rows as shared ones does not show the rise that there is: with 250 of them "
        "the standard error of an AUC is 0.04.\n"
    )


def ftl_step(part: Part) -> str:
    """Return the section on the cost of a step."""
    cells = [[f"{row['rows']:,}", str(row["units"]), number(row["cpu_s"], 2)] for row in part["rows"]]
    return (
        "### One sealed local step\nProcessor seconds of both sides under CKKS, the exchange before it included.\n\n"
        + table(["shared rows", "units", "CPU s"], cells)
    )
