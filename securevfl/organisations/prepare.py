"""Does the work that a training needs ahead of it, with the other parties on their own machines: a night's work, say.

Everybody keeps its own in a folder and names that folder to `join`, which finds what all have made together. It holds
masks, so it belongs where the party's columns are. Work that was begun and cut off goes on where all are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.organisations.conversation import Venue, converse
from securevfl.organisations.join import check_role
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import Stage
from securevfl.training.session import make_ahead


def prepare(
    job: Job,
    party: Party,
    venue: Venue,
    *,
    ahead: str | Path,
    on_round: Callable[[int, int], None] | None = None,
) -> None:
    """Prepare a training with the parties of `venue`, all of whom call this, and keep this party's work in `ahead`.

    on_round(done, of) counts the rounds that are prepared. The rest as in `securevfl.organisations.join.join`.

    Raises ConfigError for a job whose method has nothing to prepare, and else what `join` raises.
    """
    parties = venue.peers.parties
    check_role(job, party, venue.peers)

    def talk(channel: Channel) -> None:
        channel.clock.stage = Stage.AHEAD
        make_ahead(job, party, channel, parties=parties, folder=Path(ahead), on_round=on_round)

    terms = {"job": job.to_dict(), "parties": list(parties), "task": "prepare"}
    converse(party.name, venue, terms, talk, resumes=True)
    eventlog.emit(party.name, "prepared", {})
