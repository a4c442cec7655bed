"""Columns of another party by its histograms: bins that are unknown, sums that are known, least squares in a box.

A histogram is A Z, where A (nodes x rows) are the gradients of each node's rows, which the party with labels knows, and
Z (rows x bins) says in which bin of a column each row is. Some trees give more sums than there are rows, and then Z is
their solution; before that the solution nearest to even shares between 0 and 1 has its largest entry mostly there.
Where trees are trained on shares, nothing takes the place of A or of the sums: the party's own words about residuals
are uniform, and so are its shares of another's weights, which stand for them here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import Attack, By, Score
from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.models.trees import ForestInputs, Trees

STEPS = 60


def bins_of(A: Floats, sums: Floats) -> NDArray[np.intp]:
    """Find the bin of each row (n,), from gradients (k x n) of nodes and the sums (k x bins) of one column."""
    bins = sums.shape[1]
    Z = np.clip(np.linalg.lstsq(A, sums - A.sum(axis=1, keepdims=True) / bins, rcond=1e-9)[0] + 1 / bins, 0, 1)
    rate = 1 / max(float(np.linalg.norm(A, 2)) ** 2, 1e-12)
    for _ in range(STEPS):
        Z = np.clip(Z - rate * A.T @ (A @ Z - sums), 0, 1)
    return np.asarray(Z.argmax(axis=1))


class HistogramBins(Attack):
    name = "histogram_bins"
    paper = "Fu et al. 2022, label inference; sums over nodes by least squares in a box"
    measures = "share of the leaves of another party's rows that are named"
    by = By.LEAD

    def why_not(self, job: Job) -> str:
        return "" if isinstance(job.model, Trees) else "no trees in this job"

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return "none: it has nothing to go by"

    def score(self, worlds: Worlds) -> Score:
        run, _ = worlds.real_run
        lead, train = run.active, worlds.schedule.train
        (name, part), *_ = ((name, part) for name, part in run.parts.items() if not part.leads)
        inputs, table = ForestInputs.read(part.state["inputs"]), next(p for p in worlds.parties if p.name == name)
        leaves = inputs.forest.leaves(part.table(table.table))[train]
        words = [each.values[:, 0] for each in worlds.real(lead.name).shared]
        shares = lead.state["others"][name]
        right, wrong = list[float](), list[float]()
        rng, each = np.random.default_rng(worlds.seed), 2**inputs.forest.depth
        for tree in range(min(10, len(inputs.forest))):
            told = shares[1 : 1 + len(words), tree * each : (tree + 1) * each, 0].astype(np.int64)
            noise = rng.permuted(told, axis=1)
            for sums, found in ((told, right), (noise, wrong)):
                found.append(_right(np.stack(words), sums, leaves[:, tree], worlds))
        commonest = [np.bincount(own).max() / len(own) for own in leaves.T]
        return Score(float(np.mean(right)), float(np.mean(wrong)), float(np.mean(commonest)))


def _right(A: Floats, sums: Floats, truth: NDArray[np.uint8], worlds: Worlds) -> float:
    """Return the share of rows whose leaf is named; words are brought to sizes of gradients first."""
    order = np.argsort(next(iter(worlds.real().rows.values())), kind="stable")
    scaled = A[:, order] / max(float(np.abs(A).max()), 1.0)
    return float(np.mean(bins_of(scaled, sums / max(float(np.abs(sums).max()), 1.0)) == truth))
