"""Labels from everything that came over the line, by a classifier that is taught a few of them.

The attacker has no idea what the bytes mean. It cuts each byte string of a visit into as many pieces as the batch has
rows, describes each piece by a few numbers, adds its own columns and what its opened gradients say of each row, and
fits a head on the rows it knows. Bytes that follow the rows (a cleartext, one ciphertext a row under a fixed mask or
exponent) raise its score; ciphertexts do not. Against a view whose bytes are random the number of features is equal.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import (
    CLASSIFICATION,
    LabelAttack,
)
from securevfl.audit.attacks.model_completion import columns_and_outputs, complete
from securevfl.audit.findings import NO_MESSAGE
from securevfl.audit.recording.party_view import PartyView, fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.families.run_facts import RunFacts
from securevfl.job import Job


class TranscriptClassifier(LabelAttack):
    name = "transcript"
    paper = "a distinguisher on the whole view (Goldreich 2004, definition 7.2.1, made a classifier)"
    randomized = True
    requirements = (CLASSIFICATION,)

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        if job.protocol.residual is None:
            return NO_MESSAGE
        return super().remedy(job, known, attacker)

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        residuals = np.nan_to_num(view.mean_by_row(view.estimates()))
        return complete(np.column_stack([columns_and_outputs(view), residuals, pieces(view)]), view, pair)


def pieces(view: PartyView) -> Floats:
    """Numbers for each row and each place of a message (m x k): mean, first and last byte, and as integers."""
    by_place: dict[tuple[str, int], list[tuple[NDArray[np.intp], Floats]]] = defaultdict(list)
    for rows, receipt in view.received():
        for place, value in enumerate(fields(receipt.message)):
            if isinstance(value, bytes) and len(value) >= len(rows):
                by_place[type(receipt.message).__name__, place].append((rows, _describe(value, len(rows))))
    columns = [np.nan_to_num(view.mean_by_row(estimates)) for estimates in by_place.values()]
    return np.column_stack([np.empty((len(view.X), 0)), *columns])


def _describe(data: bytes, n: int) -> Floats:
    width = len(data) // n
    table = np.frombuffer(data[-width * n :], np.uint8).reshape(n, width).astype(np.float64)
    places = 256.0 ** -np.arange(min(width, 6))
    integers = [table[:, : len(places)] @ places, table[:, : -len(places) - 1 : -1] @ places]
    return np.column_stack([table.mean(axis=1), table[:, 0], table[:, -1], *integers])
