"""A job whose parties start from what they drew at random in another run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from securevfl.families.family import Method
from securevfl.families.participant import Player
from securevfl.families.state import State
from securevfl.job import Job
from securevfl.protocols.party_context import PartyContext


def with_draws(job: Job, states: Mapping[str, State]) -> Job:
    """Return the job with parties that start from what they drew in another run.

    Args:
        job: the job to run.
        states: the final state of each party in the other run, by name.

    Returns:
        A job with the same options.
    """

    class ReplayedJob(Job):
        """A job whose family creates players with the recorded draws."""

        @property
        def method(self) -> Method[Any]:
            """The family of the job."""
            method = super().method
            player = method.player

            def replaying(job: Job, context: PartyContext, columns: int, state: State | None) -> Player:
                return player(job, context, columns, method.drawn(states[context.me]) if state is None else state)

            vars(method)["player"] = replaying  # of this object alone, which is created for each access
            return method

    return ReplayedJob.model_construct(**{name: getattr(job, name) for name in Job.model_fields})
