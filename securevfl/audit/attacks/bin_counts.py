"""Labels from counts of the positive class in a party's bins, which are disclosed for weights of evidence.

Each count is a linear equation about labels: the sum of the labels y of one bin. The attacker takes the shortest y that
fits all of its counts. If residuals are in the clear, the message contains y itself. Rows of one bin get the same
guess, which improves if bins of several columns overlap. The attacker on the ideal view has the same counts, because
they are declared.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import LabelAttack, fixed_remedy
from securevfl.audit.recording.party_view import PartyView, as_numbers, fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.job import Job


class BinCounts(LabelAttack):
    """Scores rows by the least-norm labels that fit the counts of all bins."""

    name = "bin_counts"
    paper = "Dwork and Roth 2014, the algorithmic foundations of differential privacy, section 8.1 (linear queries)"
    requirements = (
        (
            lambda job: job.prepare.woe is not None,
            "no class counts of bins are opened: the job has no weights of evidence",
        ),
    )

    def target_hidden(self, job: Job) -> bool:
        """Return False, since the consent sheet states that the counts are disclosed."""
        return False

    remedy = fixed_remedy("fewer bins with more rows (prepare.woe), or no weights of evidence")

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Return the least-norm labels, or the labels in a message in the clear."""
        record, rows = pair.bins_recording[view.name], pair.schedule.batch_order
        labels = np.full((len(pair.labels), 1), np.nan)
        for opened in record.bin_counts:
            labels[rows] = np.linalg.lstsq(opened.J.T, opened.gradient)[0]
        for receipt in record.receipts:
            values = fields(receipt.message) if receipt.iteration < 0 else []
            numbers = (as_numbers(value, len(rows), 1) for value in values)
            labels[rows] = next((column for column in numbers if column is not None), labels[rows])
        return labels
