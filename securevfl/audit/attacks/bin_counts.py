"""Labels from counts of the positive class in a party's bins, which weights of evidence open before a training.

Each count is a linear equation about the labels of all training rows: the sum of the labels of one bin. The attacker
takes the shortest y that fits all of its bins; where a residual goes down in the clear, y stands in the message
itself. Rows of a bin share a guess, so the score is what classes in bins say, and more where bins of several columns
cross. The ideal attacker has the same counts, which are declared.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import LabelAttack, fixed_remedy
from securevfl.audit.recording.party_view import PartyView, as_numbers, fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.job import Job


class BinCounts(LabelAttack):
    name = "bin_counts"
    paper = "Dwork and Roth 2014, the algorithmic foundations of differential privacy, section 8.1 (linear queries)"
    requirements = (
        (lambda job: job.prepare.woe is not None, "no classes in bins are told: the job has no weights of evidence"),
    )

    def target_hidden(self, job: Job) -> bool:
        return False

    remedy = fixed_remedy("fewer bins of more rows (prepare.woe), or columns as they are")

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        seen, rows = pair.bins_recording[view.name], pair.schedule.batch_order
        labels = np.full((len(pair.labels), 1), np.nan)
        for opened in seen.bin_counts:
            labels[rows] = np.linalg.lstsq(opened.J.T, opened.gradient)[0]
        for receipt in seen.receipts:
            told = [as_numbers(value, len(rows), 1) for value in fields(receipt.message)] if receipt.visit < 0 else []
            labels[rows] = next((each for each in told if each is not None), labels[rows])
        return labels
