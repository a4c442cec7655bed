"""FDML (Hu et al. 2019) on a9a: against models of all columns in one place and of one party's columns alone.

    auc        Table I, Figures 2 and 3 (?): final AUC, losses and objective, and rounds and virtual seconds until the
               AUC is within `AUC_TOLERANCE` of that of pooled columns, by staleness, by the location of predictions and
               labels, and with a slow party
    slowness   seconds of synchronous training against stale sums if parties stop at random: see `slowness`
    order      the paper's order of an iteration (pull, update, push) against ours (push, pull, update), synchronous
    stored     the cost of a batch at the server, and AUC with noise: see `stored`
    time       processor seconds of the same steps by one owner of all columns, and by one party with its columns

In FDML, each party pushes its outputs to a server and pulls the sum of all outputs. With staleness tau, a party may be
up to tau batches ahead of the others, so the sum may contain outputs of tau batches ago; synchronous training has tau =
0.

The step size is chosen on validation rows of the first split for each kind of model, in synchronous training; all
settings use it. `tuned_*` is the result of tau = 8 with its best step size. Each split holds out another quarter of the
rows. The columns are split as in the table's file: 57 and 66, with the labels at the party with 66. If there are three
parties, two of them share the 66.
"""

from __future__ import annotations

from benchmarks.papers import slowness, stored
from benchmarks.papers.fdml_training import FULL, QUICK, Plan, orders, run, times
from benchmarks.papers.study import Part

PARTS = {
    # stale sums depend on the time at which messages arrive, and a sum of the parties' outputs may be any of tau ones
    "auc": Part(FULL, QUICK, run, lambda row: str(row["setting"]).startswith("tau 8")),
    "slowness": Part(slowness.FULL, slowness.QUICK, slowness.run, lambda row: bool(row["tau"])),
    "order": Part(Plan((2,), ("linear",)), QUICK, orders),
    "time": Part(Plan((2,), ("linear",), splits=5), QUICK, times, lambda row: "tau = 8" in row["training"]),
    "stored": Part(stored.StoredPlan(), stored.StoredPlan((16,), 1), stored.stored),
    "noise": Part(stored.NoisePlan(), stored.NoisePlan((0.0, 8.0), 2, 1), stored.noise, lambda row: True),
}
