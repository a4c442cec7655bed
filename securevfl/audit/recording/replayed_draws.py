"""A job whose parties start from the random values that they drew in another run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from securevfl.families.family import Family
from securevfl.families.participant import Participant
from securevfl.families.state import State
from securevfl.job import Job
from securevfl.protocols.party_context import PartyContext


def with_draws(job: Job, states: Mapping[str, State]) -> Job:
    """Return the job with parties that start from their random draws in another run.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        states: the final state of each party in the other run, by name.

    Returns:
        A job with the same options.
    """

    class ReplayedJob(Job):
        """A job whose protocol family creates participants with the random values of another run."""

        @property
        def family(self) -> Family[Any]:
            """The protocol family of the job; its participants start from the random values of another run."""
            family = super().family
            participant = family.participant

            def replaying(job: Job, context: PartyContext, columns: int, state: State | None) -> Participant:
                return participant(
                    job, context, columns, family.drawn_secrets(states[context.me]) if state is None else state
                )

            vars(family)["participant"] = replaying  # changes only this object, since each access creates a new one
            return family

    return ReplayedJob.model_construct(**{name: getattr(job, name) for name in Job.model_fields})
