"""Labels by which of one's own splits were chosen: a split is worth choosing where labels differ on its sides.

Where one class is rare, the side with fewer rows holds more of it. So every row gets a point for each chosen split on
whose smaller side it is, more for splits near the root, which were chosen among all rows. Where trees are drawn at
random and trained on shares no split is chosen; what stands for that here is how large the party's share of the
weights of its leaves is, which is uniform.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securevfl.audit.attacks.base import LabelAttack
from securevfl.audit.histograms import ChosenSplit
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.models.trees import ForestInputs, Trees

FALL = 0.5  # of a level's points to those of the one above it


def points(chosen: Sequence[ChosenSplit], rows: int) -> Floats:
    """Score each row (n,), higher for the rarer class."""
    found = np.zeros(rows)
    for each in chosen:
        smaller = each.above if each.above.mean() <= 0.5 else ~each.above
        found[each.rows[smaller]] += FALL**each.level
    return found


class ChosenSplits(LabelAttack):
    name = "chosen_splits"
    paper = "Fu et al. 2022, label inference; splits that won, smaller side up"

    def why_not(self, job: Job) -> str:
        return super().why_not(job) or ("" if isinstance(job.model, Trees) else "no trees in this job")

    def hidden(self, job: Job) -> bool:
        """Which of one's splits are taken for chosen is random here, and rare rows may be of one class by themselves:
        no single run can be held against another."""
        return False

    def guess(self, view: View, worlds: Worlds) -> Floats:
        part = worlds.real_run[0].parts[view.name]
        inputs = ForestInputs.read(part.state["inputs"])
        party = next(each for each in worlds.parties if each.name == view.name)
        numbers = inputs.forest.numbers(part.table(party.table))
        trees, each = len(inputs.forest), 2**inputs.forest.depth
        share = np.abs(view.theta[: trees * each, 0]).reshape(trees, each).sum(axis=1)
        chosen = [
            ChosenSplit(level, np.arange(len(numbers)), (numbers[:, tree] >> level & 1).astype(bool))
            for tree in np.argsort(-share)[: max(1, trees // 4)]
            for level in range(inputs.forest.depth)
        ]
        return points(chosen, len(numbers))[:, None]
