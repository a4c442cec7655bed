"""Labels from all received bytes, by a classifier that is trained on a few known labels.

The attacker does not know the meaning of the bytes. It cuts each byte string of an iteration into one piece for each
row of the batch, describes each piece by a few numbers, and adds its columns and what its decrypted gradients reveal
about each row. Then it trains a classifier (the head) on the rows whose labels it knows. Bytes that depend on the row
(a cleartext, or one ciphertext for each row under a fixed mask or exponent) raise the score; proper ciphertexts do not.
The number of features is the same on the ideal view, where bytes are random.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import (
    CLASSIFICATION,
    LabelAttack,
)
from securevfl.audit.attacks.model_completion import columns_and_outputs, head_scores
from securevfl.audit.findings import NO_MESSAGE
from securevfl.audit.recording.party_view import PartyView, fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.families.facts import RunFacts
from securevfl.job import Job


class TranscriptClassifier(LabelAttack):
    """Trains a classifier (the head) on features of all received bytes."""

    name = "transcript"
    paper = "a distinguisher on the whole view (Goldreich 2004, definition 7.2.1, as a classifier)"
    randomized = True
    requirements = (CLASSIFICATION,)

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        """Return the remedy of `LabelAttack`; if the job has no residuals, say that the attack needs no message."""
        if job.protocol.residual is None:
            return NO_MESSAGE
        return super().remedy(job, known, attacker)

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Return each row's class probabilities by the classifier that is trained on the known labels."""
        residuals = np.nan_to_num(view.mean_by_row(view.estimates()))
        return head_scores(np.column_stack([columns_and_outputs(view), residuals, byte_features(view)]), view, pair)


def byte_features(view: PartyView) -> Floats:
    """Return k features of each row (m, k): those of `_piece_features` for each field of each message type."""
    by_field: dict[tuple[str, int], list[tuple[NDArray[np.intp], Floats]]] = defaultdict(list)
    for rows, receipt in view.received():
        for index, value in enumerate(fields(receipt.message)):
            if isinstance(value, bytes) and len(value) >= len(rows):
                by_field[type(receipt.message).__name__, index].append((rows, _piece_features(value, len(rows))))
    columns = [np.nan_to_num(view.mean_by_row(estimates)) for estimates in by_field.values()]
    return np.column_stack([np.empty((len(view.X), 0)), *columns])


def _piece_features(data: bytes, n: int) -> Floats:
    """Return features (n, 5) of the n equal pieces of a byte string.

    They are the mean, first and last byte, and the size of the piece as a big-endian and as a little-endian integer.
    """
    width = len(data) // n
    table = np.frombuffer(data[-width * n :], np.uint8).reshape(n, width).astype(np.float64)
    powers = 256.0 ** -np.arange(min(width, 6))
    integers = [table[:, : len(powers)] @ powers, table[:, : -len(powers) - 1 : -1] @ powers]
    return np.column_stack([table.mean(axis=1), table[:, 0], table[:, -1], *integers])
