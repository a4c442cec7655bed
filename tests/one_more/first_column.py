"""Another attack: a passive party takes its first column for the label."""

from __future__ import annotations

from securevfl.audit.attacks.base import LabelAttack
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.families.facts import RunFacts
from securevfl.job import Job


class FirstColumn(LabelAttack):
    """Guess the label by the attacker's first column."""

    name = "first_column"
    paper = "no paper: chance, or the attacker's column"

    def guess(self, view: PartyView, stage: RealIdealPair) -> Floats:
        """Return the first column (n, 1)."""
        return view.X[:, :1]

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        """Say that no option of a job changes the attacker's own columns."""
        return f"none: it is {attacker}'s own column"
