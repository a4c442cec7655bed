"""Print the bits that evaluations on secret shares disclose of each table, and the bias of metrics of rounded scores.

An evaluation discloses the scores of held-out rows, rounded at random to one of a few values, called levels.

    PYTHONPATH=. python -m benchmarks.evaluation_bits FOLDER

The columns for each table with two classes are:
- the AUC of a pooled logistic regression on held-out rows;
- the mean change of this AUC if scores are rounded to levels, over random roundings;
- the change that remains after the estimated effect of the rounding is subtracted, as in reported metrics;
- the maximum number of bits that the default job's evaluations disclose about the columns of the party without labels,
  and their share of the bits of these columns.

`MAX_EVALUATION_SHARE` and the default levels were chosen by this table. It needs no training on shares.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import securevfl as vfl
from benchmarks import real_tables, tables
from benchmarks.real_tables import TABLES, two_files
from securevfl.base.arrays import Floats
from securevfl.disclosure.counts import COLUMN_BIT_GROUP
from securevfl.errors import DataNotice
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.shares.shares_outputs import PAIRS
from securevfl.models.metrics import area_under_curve
from securevfl.models.pair_metrics import auc_rounding_bias
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.shares_options import Shares

ROUNDINGS = 10


def generated(signal: float, rows: int = 20_000) -> list[vfl.Party]:
    """Return two parties of five normal columns each, and labels whose log odds have the deviation `signal`."""
    draw = np.random.default_rng(1)
    X = draw.normal(size=(rows, 10))
    f = signal * X @ np.full(10, 10**-0.5) - 1
    y = (draw.random(rows) < 1 / (1 + np.exp(-f))).astype(int)
    ids = np.arange(rows)
    return [vfl.Party("bank", X[:, :5], y, ids=ids), vfl.Party("shop", X[:, 5:], ids=ids)]


def numbers(name: str, folder: Path) -> list[vfl.Party]:
    """Return the files of guest and host, whose label is the guest's second column."""
    (_, guest), (_, host) = (real_tables.read(folder / f"{name}_hetero_{side}.csv.gz") for side in ("guest", "host"))
    bank = vfl.Party("bank", guest[:, 2:].astype(float), guest[:, 1].astype(float), ids=guest[:, 0].tolist())
    return vfl.align([bank, vfl.Party("shop", host[:, 1:].astype(float), ids=host[:, 0].tolist())])


def all_tables(folder: Path) -> Iterator[tuple[str, Callable[[], list[vfl.Party]], str]]:
    """Yield the name of each table, a function that reads or generates it, and its model."""
    for name, load in TABLES.items():
        yield name, partial(load, folder), "logistic"
    yield "epsilon_5k", partial(tables.epsilon_5k, folder), "logistic"
    yield "vehicle_scale", partial(two_files, "vehicle_scale", folder), "one_vs_rest"
    yield "mnist", partial(tables.dealt, folder, "mnist", 2), "one_vs_rest"
    yield "motor", partial(numbers, "motor", folder), "square"
    yield "dvisits", partial(numbers, "dvisits", folder), "poisson"
    for signal in (0.3, 0.5, 1.0, 2.0):
        yield f"generated {signal:g}", partial(generated, signal), "logistic"
    yield "breast_cancer", vfl.datasets.breast_cancer, "logistic"
    yield "loans", partial(vfl.datasets.loans, 20_000), "logistic"


def rounded(f: Floats, levels: Quantizer, draw: np.random.Generator) -> Floats:
    """Return scores (n,), clipped and rounded at random to one of the two nearest levels, equal to f in the mean."""
    return np.floor(levels.clipped(f) / levels.size + draw.random(len(f))) * levels.size


def line(name: str, parties: list[vfl.Party], model_name: str) -> str:
    """Return the line of one table; for other models than a logistic one it has no AUC."""
    job = vfl.Job(model=model_name)
    facts = pooled_run_facts(job, parties)
    schedule, parties = facts.schedule, list(facts.parties)
    X = np.hstack([np.asarray(party.X[:], np.float64) for party in parties])
    outputs = [output for output in facts.outputs if output.group == COLUMN_BIT_GROUP]
    bits, capacity = sum(output.count for output in outputs), outputs[0].capacity
    row = capacity / (facts.shape.rows + facts.shape.held_out)
    pair = max((output.bits for output in outputs if output.name == PAIRS), default=0)
    disclosed = f"{row:>6.1f} {pair:>2} ({pair / row:>4.0%}) {bits:>6,} {bits / capacity:.2%}"
    if model_name != "logistic":
        return f"{name:16} {len(parties[0]):>8,} {'':23} {disclosed}"
    y = np.asarray(parties[0].labels) == np.unique(parties[0].labels)[1]
    train, test = schedule.train, schedule.test
    scaler = StandardScaler().fit(X[train])
    model = LogisticRegression(max_iter=500).fit(scaler.transform(X[train]).clip(-8, 8), y[train])
    f = model.decision_function(scaler.transform(X[test]).clip(-8, 8))
    levels, draw = Shares()._metric_levels(classifies=True), np.random.default_rng(0)
    exact = area_under_curve(y[test], f)
    scores = [rounded(f, levels, draw) for _ in range(ROUNDINGS)]
    changes = np.array([area_under_curve(y[test], score) - exact for score in scores])
    biases = [auc_rounding_bias(y[test], score, levels.size) for score in scores]
    return f"{name:16} {len(y):>8,} {exact:.4f} {changes.mean():+.5f} {(changes - biases).mean():+.5f} {disclosed}"


def main() -> None:
    """Print a line for each table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="folder with the real tables")
    folder = options.parse_args().folder
    warnings.simplefilter("ignore", DataNotice)
    print(f"{'table':16} {'rows':>8} {'AUC':>6} {'change':>8} reported", end="")
    print("  bits of a row, of it in a pair; bits of all evaluations, share")
    for name, load, model_name in all_tables(folder):
        print(line(name, load(), model_name), flush=True)


if __name__ == "__main__":
    main()
