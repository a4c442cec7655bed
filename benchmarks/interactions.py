"""What interactions of two parties' columns are worth, and what pairs, the products of their components, find of them.

    python -m benchmarks.interactions [--tables NAMES] [--rows N] [--seeds 5] [--data DIR] [--shares] [--json FILE]
    python -m benchmarks.interactions --costs

The tables are generated (`benchmarks.interaction_tables`), or real ones of the folder `--data` by their names in
`benchmarks.real_tables`. Each is split at random into training rows, a tenth of them held out to choose the model, and
test rows, whose AUC is printed:

    additive  scikit-learn's gradient boosting on all columns in one place, no tree of which mixes parties
    pooled    the same with trees that mix parties
    trees     trees, with the steps of the package in floating point
    pairs     the same trees and, as further columns, the products of the components of both parties
    share     (pairs - trees) / (pooled - additive), the share of the interactions that pairs find

The figures of trees, pairs and boosting are of the same rows, so their differences are paired. A last line states for
each table whether it meets the target. With `--shares`, a logistic regression with pairs is trained on secret shares
and by the same steps in floating point. `--costs` measures what pairs add to a training and to a score.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.interaction_costs import cost_rows
from benchmarks.interaction_shares import shares_row
from benchmarks.interaction_tables import TABLES
from benchmarks.interactions_page import store, summary
from benchmarks.real_tables import TABLES as REAL_TABLES
from benchmarks.tree_floats import PreparedRows, Steps, outputs_by_iteration, prepared_rows
from benchmarks.tree_schedule import stopping_point
from benchmarks.trees import HELD_OUT
from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.base.files import check_writable
from securevfl.bench.result_file import file_content
from securevfl.errors import DataNotice
from securevfl.job import Job
from securevfl.models.metrics import area_under_curve
from securevfl.models.pair_components import COMPONENT_STEP, PAIR_RIDGE, PairComponents
from securevfl.models.trees import Trees

SCHEMA = "securevfl.bench.interactions/1"
STEPS, EVALUATIONS = Steps(1, 10, 2), (10, 20, 30)
"""The steps of trees by default, and the iterations after which their loss is evaluated."""
COMPONENTS = 16
TRAINED = 0.75  # share of the rows
COST_ROWS, SCORED_ROWS = 22_500, 4_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The figure that a table should reach.

    Attributes:
        figure: "pairs" for the AUC with pairs, "gain" for its difference from that of trees, or "share".
        smallest: the smallest value that meets the target.
    """

    figure: str
    smallest: float

    def value(self, rows: Sequence[Row]) -> float:
        """Return the figure of the means of a table's rows."""
        return float(summary(rows)[self.figure])


TARGETS = {
    "exclusive-or": Target("pairs", 0.85),
    "magic-like": Target("share", 0.6),
    "phoneme-like": Target("share", 0.2),
    "california-like": Target("share", 0.25),
    "additive": Target("gain", -0.001),
    "binary": Target("gain", -0.001),
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.interactions", description=__doc__.split("\n")[0])
    options.add_argument("--tables", nargs="+", metavar="NAME", help="which tables; by default all generated ones")
    options.add_argument("--rows", type=int, help="rows of a generated table; by default as many as the real one has")
    options.add_argument("--seeds", type=int, default=5, help="number of generated tables and splits (default: 5)")
    options.add_argument("--data", type=Path, help="the folder of the real tables")
    options.add_argument(
        "--ridge",
        type=float,
        default=PAIR_RIDGE,
        help="ridge of pairs, for one product and one training row (default: that of the package); not stored",
    )
    options.add_argument("--shares", action="store_true", help="train on secret shares too, and compare with floats")
    options.add_argument("--costs", action="store_true", help="measure only what pairs cost")
    options.add_argument("--store", action="store_true", help="store the rows, and draw docs/interactions.md again")
    options.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = options.parse_args(words)
    known = [*TABLES, *(REAL_TABLES if arguments.data else ())]
    names = arguments.tables or list(TABLES)
    if unknown := [name for name in names if name not in known]:
        options.error(f"--tables: unknown names {', '.join(unknown)}; choose from {', '.join(known)}")
    check_writable(arguments.json)
    rows = []
    for name in () if arguments.costs else names:
        for seed in range(arguments.seeds):
            rows.append(table_row(name, seed, rows=arguments.rows, data=arguments.data, ridge=arguments.ridge))
            print(_line(rows[-1]), flush=True)
        print(_summary(name, [row for row in rows if (row["what"], row["table"]) == ("auc", name)]), flush=True)
        if arguments.shares and name in TABLES:
            rows.append(shares_row(name, 0, rows=arguments.rows))
            print("{table} on shares {shares:.4f}, in floats {floats:.4f}".format(**rows[-1]), flush=True)
    if arguments.costs:
        rows = cost_rows(arguments.rows or COST_ROWS, min(SCORED_ROWS, arguments.rows or SCORED_ROWS))
        print("pairs add {cpu_s:.1f} processor s and {mb:.0f} MB to a training".format(**rows[0]))
        print("pairs add {cpu_ms:.2f} processor ms and {kb:.1f} kB to a score".format(**rows[1]))
    if arguments.store and arguments.ridge == PAIR_RIDGE:
        store(SCHEMA, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(file_content(SCHEMA, rows), indent=1) + "\n", encoding="utf-8")


def table_row(
    name: str, seed: int, *, rows: int | None = None, data: Path | None = None, ridge: float = PAIR_RIDGE
) -> Row:
    """Return the AUCs of one table and split.

    Args:
        name: name of a generated table, or of a real one if `data` is given.
        seed: seed of the generated table and of the split.
        rows: number of rows of a generated table; None for its usual number.
        data: the folder of the real tables, or None.
        ridge: the ridge penalty of pairs is this number times the number of products, divided by that of rows.

    Returns:
        The row.
    """
    parties = TABLES[name].parties(rows, seed) if name in TABLES else REAL_TABLES[name](data or Path())
    order = np.random.default_rng([seed, 5]).permutation(len(parties[0]))
    trained = int(len(order) * TRAINED)
    held = int(trained * HELD_OUT)
    parts = [np.sort(part) for part in (order[held:trained], order[:held], order[trained:])]
    job = Job.from_dict({"model": Trees(), "test_fraction": HELD_OUT})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        sets = prepared_rows(job, [party.take(parts[0]) for party in parties], parties, parts[1:])
    train, held_out, test = sets
    components = [PairComponents.fit(X, COMPONENTS) for X in train.columns]
    pairs = [products(components, rows.columns) for rows in sets]
    figures: Row = {"products": pairs[0].shape[1]}
    for model, further in (("trees", ()), ("pairs", pairs)):
        path = outputs_by_iteration(job, sets, STEPS, further, pair_ridge=ridge)
        best, _ = stopping_point(EVALUATIONS, [job.model.loss.value(f, held_out.y).mean() for f, _ in path])
        scores = {model: path[best - 1][1][:, 0]} | (boosting(train, test) if not further else {})
        figures |= {name: area_under_curve(test.y[:, 0] > 0, f) for name, f in scores.items()}
        figures[f"{model}_iterations"] = best
    return {"what": "auc", "table": name, "seed": seed, "rows": len(parties[0])} | figures


def products(components: Sequence[PairComponents], columns: Sequence[Floats]) -> Floats:
    """Return the products (n, d) of every component of one party with every one of the other.

    Args:
        components: the transformation of each party.
        columns: the prepared columns of each party in n rows.
    """
    local, other = (item.transform(X) * COMPONENT_STEP for item, X in zip(components, columns, strict=True))
    return np.asarray(local[:, :, None] * other[:, None, :]).reshape(len(local), -1)


def boosting(train: PreparedRows, test: PreparedRows) -> dict[str, Floats]:
    """Return the outputs (n,) for test rows of boosted trees that mix the columns of parties, and of ones that do not.

    Args:
        train: the training rows.
        test: the test rows.

    Returns:
        The outputs, as `additive` and `pooled`.
    """
    import_extra("sklearn", "sklearn", "boosting on all columns in one place")
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    edges = np.cumsum([0, *(X.shape[1] for X in train.columns)]).tolist()
    sides = [set(range(start, stop)) for start, stop in pairwise(edges)]
    X, y, outputs = np.hstack(train.columns), train.y[:, 0] > 0, dict[str, Floats]()
    for name, allowed in (("additive", sides), ("pooled", None)):
        with threadpool_limits(1, user_api="openmp"):  # more threads would wait in a busy loop if cores are busy
            model = HistGradientBoostingClassifier(random_state=0, interaction_cst=allowed).fit(X, y)
        outputs[name] = model.decision_function(np.hstack(test.columns))
    return outputs


HEADS = "additive", "pooled", "trees", "pairs"


def _line(row: Row) -> str:
    figures = ", ".join(f"{head} {row[head]:.4f}" for head in HEADS)
    return f"{row['table']}, split {row['seed']}: {figures} ({row['products']} products)"


def _summary(name: str, rows: Sequence[Row]) -> str:
    figures = ", ".join(f"{head} {np.mean([row[head] for row in rows]):.4f}" for head in HEADS)
    target = TARGETS.get(name)
    if target is None:
        return f"{name}, means: {figures}"
    value = target.value(rows)
    met = "met" if value >= target.smallest else "missed"
    return f"{name}, means: {figures}; {target.figure} {value:.4f}, wanted >= {target.smallest:g}: {met}"


if __name__ == "__main__":
    main()
