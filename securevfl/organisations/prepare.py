"""Run the offline phase of a training with the other parties on their own machines, for example overnight.

Each party stores its preprocessed material in a folder and passes that folder to `join`, which uses what all parties
have in common. The folder contains masks, so it needs the same protection as the table. An interrupted offline phase
resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from securevfl.data.party import Party
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.job import Job
from securevfl.organisations.join import check_role
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Stage
from securevfl.training.session import run_offline_phase


def prepare(
    job: Job,
    party: Party,
    venue: PeerSettings,
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
        channel.clock.stage = Stage.OFFLINE
        run_offline_phase(job, party, channel, parties=parties, folder=Path(ahead), on_round=on_round)

    terms = {"job": job.to_dict(), "parties": list(parties), "task": "prepare"}
    run_session(party.name, venue, terms, talk, ledger=DisclosureLedger.open(party.name, None), resumes=True)
    eventlog.emit(party.name, "prepared", {})
