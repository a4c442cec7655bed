"""Prediction of a protocol family: how new rows are scored, who receives the scores, and how many bits a score has.

The requesting party is the one that receives scores. The leading party has the labels. A party's score ledger records
the scores of its rows that others have received.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from typing import ClassVar, Generic

from securevfl.disclosure.counts import RunShape
from securevfl.families.family_types import O
from securevfl.families.state import State
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger


class FamilyPrediction(ABC, Generic[O]):
    """How a protocol family scores new rows. By default all parties compute the model's outputs together.

    Attributes:
        repeatable_scores: whether the predictions that a party contributes depend only on its own part of the model
            and its own columns, so that a repeated request discloses nothing new.
        admits_rows_itself: whether the protocol family decides row by row which requested rows receive a score, and
            charges them to the ledger (`securevfl.protocols.party_context.LocalResources.charge_scores`).
    """

    repeatable_scores: ClassVar[bool] = False
    admits_rows_itself: ClassVar[bool] = False

    def score_requester(self, job: O, lead: str) -> str:
        """Return the party that receives scores of new rows; by default the leading party, `lead`."""
        return lead

    def score_bits(self, job: O, shape: RunShape | None = None) -> int:
        """Return the number of bits that each score of a new row discloses to the requesting party.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            shape: the public sizes of the run (numbers of rows, columns and outputs), if they are known.

        Returns:
            The number of bits: by default 64, the size of a float64; 0 if the requesting party receives no scores.
        """
        return 64

    def count_trained_rows(self, state: State, score_ledger: ScoreLedger, ids: Iterable[bytes]) -> int:
        """Return how many of these rows will be refused because the model was trained on them; by default 0.

        Args:
            state: the party's part of the model, as a stored state.
            score_ledger: the party's score ledger.
            ids: digests of the ids of the rows.

        Returns:
            The number of rows.
        """
        return 0
