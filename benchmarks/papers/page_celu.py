"""CELU-VFL's sections of docs/results.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.papers.page_cells import Part, Row, number, pick, rounds_cell, share, starts, table, typical

HIGHEST = "\nThe highest AUC is a mean over the starts. A training that diverges counts as 0.\n"


def celu_rounds(part: Part) -> str:
    """Return the section on rounds to AUCs."""
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(row["method"], number(row["target"], 2), f"{row['step']:g}", rounds_cell(row)),
            *(f"{row['one_step']:g}", rounds_cell(row, "one_")),
            share(typical(row, "one_"), typical(pick(rows, method="plain", target=row["target"]), "one_")),
        ]
        for row in rows
    ]
    return (
        "### Rounds with stored exchanges\n"
        f"{plan['rows']:,} generated clicks, batches of {plan['batch']}, Z of {plan['width']} numbers, one epoch, "
        f"AdaGrad, R = 5, "
        f"W = 5, xi = 60, depth 3, {starts(plan)}, an evaluation every {plan['every']} rounds.\n\n"
        + table(["method", "AUC", "own step", "rounds", "one step", "rounds", "of plain"], cells)
        + f"\nAt one step, celu takes {_percent_of_plain(rows, 'one_')} of the rounds of plain training; at the step "
        f"that is best for each method on validation rows, it takes {_percent_of_plain(rows, '')}. The paper has "
        "55 to 60 % fewer rounds, over 31,540 rounds of small steps.\n\n"
        "![AUC by rounds](figures/celu.svg)\n"
    )


def _percent_of_plain(rows: Sequence[Row], step: str) -> str:
    """Return the range of celu's rounds in percent of plain training's, over the targets that both reach; else "-"."""
    shares = []
    for row in rows:
        celu, plain = typical(row, step), typical(pick(rows, method="plain", target=row["target"]), step)
        if row["method"] == "celu" and celu is not None and plain is not None:
            shares.append(100 * celu / plain)
    return f"{min(shares):.0f} to {max(shares):.0f} %" if shares else "-"


def celu_steps(part: Part) -> str:
    """Return the section on step sizes."""
    rows, plan = part["rows"], part["plan"]["setting"]
    targets = [target for target in plan["targets"] if target < 0.9]
    cells = []
    for method in plan["methods"]:
        for step in sorted({row["step"] for row in rows}):
            selected = [pick(rows, method=method, step=step, target=target) for target in targets]
            shares = [share(typical(row), _plain(rows, row)) for row in selected]
            cells.append(
                [
                    method,
                    f"{step:g}",
                    *(rounds_cell(row) for row in selected),
                    shares[-1],
                    number(selected[0]["auc"], 4) if selected[0]["auc"] else "diverged",
                ]
            )
    head = ["method", "step", *(f"to {number(target, 2)}" for target in targets), "last, of plain", "highest AUC"]
    return (
        "### Steps and stored exchanges\n"
        f"{plan['rows']:,} generated clicks, batches of {plan['batch']:,}, Z of {plan['width']} numbers in 4 bytes, "
        "one epoch, AdaGrad, R = 5 unless the name has another R, W = 5, xi = 60, depth 3 under a pipeline, "
        f"{starts(plan)}, an evaluation every {plan['every']} rounds; all steps that were tried.{_ends(plan)}\n\n"
        + table(head, cells)
        + HIGHEST
        + f"\n{_reasons(rows, plan['methods'], targets[-1])}"
    )


def _ends(plan: Mapping[str, Any]) -> str:
    """Return where trainings end; older ones had a target beyond reach, so that they ran for all rounds."""
    last = plan["targets"][-1]
    return "" if last > 0.9 else f" A training ends at {number(last, 2)}."


def _reasons(rows: list[Mapping[str, Any]], methods: Sequence[str], target: float) -> str:
    """Return the rounds of each method at its best step, and why a pipeline needs more."""
    best = {method: _best(rows, method, target) for method in methods}
    plain = best["plain"]
    assert plain is not None, "plain training gets there at some step"
    words = ", ".join(
        f"{method} {number(typical(row), 0)} ({row['step']:g}; {share(typical(row), typical(plain))} of plain)"
        for method, row in best.items()
        if row is not None and method != "plain"
    )
    return (
        f"**Each at its best step**, on the rows reported, takes to {number(target, 2)}: plain "
        f"{number(typical(plain), 0)} rounds ({plain['step']:g}), {words}. These are medians over the starts.\n\n"
        "**Why stored exchanges do not pay in a pipeline**: each local step makes the exchanges in flight one update "
        "older. With depth 3, outputs are 2 updates old in a pipeline of plain training, and 10 with R = 5.\n"
    )


def _best(rows: list[Mapping[str, Any]], method: str, target: float) -> Mapping[str, Any] | None:
    """Return the step at which a method takes the fewest rounds; None if it never reaches the target."""
    results = [row for row in rows if row["method"] == method and row["target"] == target and typical(row) is not None]
    return min(results, key=lambda row: typical(row) or 0.0, default=None)


def celu_sweep(part: Part) -> str:
    """Return the section on R, W and xi."""
    rows, plan = part["rows"], part["plan"]["setting"]
    targets = plan["targets"]
    points = list(dict.fromkeys((row["R"], row["W"], row["xi"]) for row in rows))
    cells = [
        [
            *(str(r), str(w), "none" if xi is None else f"{xi:g}"),
            *(rounds_cell(pick(rows, R=r, W=w, xi=xi, target=target)) for target in targets),
        ]
        for r, w, xi in points
    ]
    return (
        "### Uses, stored exchanges and angles\n"
        f"The setting of the first table, step {rows[0]['step']:g}, {starts(plan)}: rounds by R, W and xi. "
        "R = 1 is plain training.\n\n" + table(["R", "W", "xi", *(f"to {number(t, 2)}" for t in targets)], cells)
    )


def celu_cosines(part: Part) -> str:
    """Return the section on cosines of rows."""
    rows, plan = part["rows"], part["plan"]
    names = {name: f"{name[1:]} %" for name in rows[0] if name[0] == "q"}
    cells = [
        [
            *(row["vector"], f"{row['stage'] + 1} of {row['stages']}", *(number(row[name], 4) for name in names)),
            number(100 * row["beyond_xi"], 2),
        ]
        for row in rows
    ]
    last = [pick(rows, vector=vector, stage=plan["stages"] - 1) for vector in ("outputs", "derivatives")]
    return (
        "### Cosines of rows\n"
        f"The paper's Figure 5d, in the setting of the first table: all {plan['rows']:,} clicks in one epoch, step "
        f"{plan['step']:g}, R = 5, W = 5, xi = 60, one split, {plan['starts']} random starts. At every local step, a "
        "row's cosine compares its vector at the exchange with the same vector now: its outputs at the party without "
        "labels, its derivatives at the party with labels. The table has quantiles over all rows and local steps of a "
        "fifth of the training, and the share of rows beyond xi, which get the weight 0.\n\n"
        + table(["vector", "fifth of the training", *names.values(), "% beyond xi"], cells)
        + f"\nIn the last fifth, 95 % of the rows have a cosine above {number(last[0]['q5'], 4)} (outputs) and "
        f"{number(last[1]['q5'], 4)} (derivatives), so weights of rows are close to 1 in this setting. The "
        "table before has the rounds by xi.\n"
    )


def celu_sealed(part: Part) -> str:
    """Return the section on sealed residuals."""
    rows, plan = part["rows"], part["plan"]
    cells = [
        [row["residual"], "none" if row["xi"] is None else f"{row['xi']:g}", number(row["auc"], 4)] for row in rows
    ]
    return (
        "### A linear model under CKKS\n"
        f"default_credit as FATE cuts it, logistic regression, batches of {plan['batch']:,}, AdaGrad, R = {plan['R']}, "
        f"W = {plan['W']}, {rows[0]['rounds']:g} rounds, step {rows[0]['step']:g} for all, the best in the open on "
        "validation rows.\n\n" + table(["residual", "xi", "AUC"], cells)
    )


def celu_long(part: Part) -> str:
    """Return the section on long trainings."""
    rows, plan = part["rows"], part["plan"]["setting"]
    cells = [
        [
            *(f"{row['step']:g}", row["method"], number(row["target"], 2), rounds_cell(row)),
            *(share(typical(row), _plain(rows, row)), number(row["auc"], 4)),
        ]
        for row in rows
        if row["target"] < 0.9
    ]
    return (
        "### A thousand rounds\n"
        f"{plan['rows']:,} generated clicks, batches of {plan['batch']}, Z of {plan['width']} numbers in 4 "
        "bytes, one epoch, "
        f"AdaGrad, R = 5, W = 5, xi = 60, depth 3, {starts(plan)}, an evaluation every {plan['every']} rounds; the "
        "same step for all methods, the best for plain training in the first table. In batches this small stored "
        f"exchanges in a pipeline take more rounds at it.{_ends(plan)}\n\n"
        + table(["step", "method", "AUC", "rounds", "of plain", "highest AUC"], cells)
        + HIGHEST
    )


def _plain(rows: Sequence[Row], row: Row) -> float | None:
    return typical(pick(rows, method="plain", step=row["step"], target=row["target"]))


def celu_seconds(part: Part) -> str:
    """Return the section on seconds of a round."""
    rows = part["rows"]
    cells = [
        [
            *(f"{row['batch']:,}", f"{row['mbps']:g}", row["method"], row["precision"]),
            *(number(row["seconds"], 3), number(row["mb"], 2)),
            share(pick(rows, method="plain", precision="double", batch=row["batch"])["seconds"], row["seconds"]),
        ]
        for row in rows
    ]
    return (
        "### Seconds of a round\n"
        f"Z of {part['plan']['width']} numbers in 8 bytes or in 4, as the paper sends them, "
        f"{part['plan']['rtt_ms']:g} ms, a "
        "line that is half duplex: the paper adds up both directions. At the rows of the tables above the "
        "line is as much "
        "slower as there are fewer rows, so that Z takes as long as in the paper, and computing as little.\n\n"
        + table(["rows", "Mbps", "method", "precision", "seconds", "MB", "times as fast as plain, double"], cells)
    )


def celu_small(part: Part) -> str:
    """Return the section on small steps."""
    rows, plan = part["rows"], part["plan"]["setting"]
    cells = [
        [
            *(f"{row['step']:g}", row["method"], number(row["target"], 2), rounds_cell(row)),
            *(share(typical(row), _plain(rows, row)), number(row["auc"], 4)),
        ]
        for row in rows
        if row["target"] < 0.9
    ]
    return (
        "### A thousand rounds of small steps\n"
        f"{plan['rows']:,} generated clicks, batches of {plan['batch']:,}, Z of {plan['width']} numbers in 4 bytes, "
        f"one epoch, AdaGrad, R = 5, W = 5, xi = 60, {starts(plan)}, an evaluation every {plan['every']} rounds. A "
        "pipeline has 3 exchanges in flight, *2 in flight* two of CELU: while one is on its way, earlier ones are "
        "used. The paper's "
        f"31,540 rounds are of small steps too; 0.02 is the larger step that was tried.{_ends(plan)}\n\n"
        + table(["step", "method", "AUC", "rounds", "of plain", "highest AUC"], cells)
        + HIGHEST
    )


def celu_line(result: Mapping[str, Part]) -> str:
    """Return seconds to an AUC: rounds of one table times seconds of a round of the other."""
    cells = []
    for name in ("steps", "long", "small"):
        if name not in result:
            continue
        rows, plan = result[name]["rows"], result[name]["plan"]
        for seen in (
            [[row for row in rows if row["step"] == step] for step in plan["steps"]] if name == "small" else [rows]
        ):
            cells += _times(seen, result["seconds"]["rows"], plan["setting"])
    head = ["rows", "AUC", "method", "precision", "step", "rounds", "seconds of a round", "seconds", "times as fast"]
    return (
        "### Seconds to an AUC\n"
        "Rounds of the tables above (medians over the starts) times seconds of a round; times as fast as plain "
        "training in double precision. In "
        "the first two settings each method is at the best of its steps there, picked on the rows reported; in the "
        "last, of a thousand rounds of small steps, all are at one step. The paper has 2.47 times on Criteo.\n\n"
        + table(head, cells)
    )


def _times(
    rows: list[Mapping[str, Any]], rounds: list[Mapping[str, Any]], setting: Mapping[str, Any]
) -> list[list[str]]:
    """List seconds to the highest AUC that plain training reaches, by method and precision."""
    target = max(row["target"] for row in rows if row["method"] == "plain" and typical(row) is not None)
    cells, full = [], None
    for method in setting["methods"]:
        best = _best(rows, method, target)
        for precision in ("double", "single"):
            a_round = _a_round(rounds, method, precision, setting["batch"])
            if best is None or a_round is None:
                continue
            rounds_to_target = typical(best)
            assert rounds_to_target is not None
            took = rounds_to_target * a_round
            full = took if full is None else full  # that of plain training in double precision, the first row
            cells.append(
                [
                    *(f"{setting['batch']:,}", number(target, 2), method, precision, f"{best['step']:g}"),
                    *(number(rounds_to_target, 0), number(a_round, 3), number(took, 1), share(full, took)),
                ]
            )
    return cells


def _a_round(rows: list[Mapping[str, Any]], method: str, precision: str, batch: int) -> float | None:
    """Return seconds of a round; None for a method that was not timed."""
    ways = {(row["method"], row["precision"], row["batch"]): row["seconds"] for row in rows}
    return ways.get((method, precision, batch))
