"""Run the offline phase of a training with the other parties on separate machines, for example overnight.

In the offline phase the parties generate random material that does not depend on their tables, and store it for the
training. Each party passes the folder with its material to `join`. The folder contains masks of secret values, so it
needs the same protection as the table. An interrupted offline phase resumes.
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
from securevfl.organisations.preconditions import SessionNeeds
from securevfl.protocols.shares.disk_store import check_unlocked
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Stage
from securevfl.training.run_setup import run_key
from securevfl.training.session import material_folder, run_offline_phase


def prepare(
    job: Job,
    party: Party,
    settings: PeerSettings,
    *,
    preprocessing: str | Path,
    on_round: Callable[[int, int], None] | None = None,
) -> None:
    """Run the offline phase of a training. All parties call this function at the same time.

    Args:
        job: the options of the training, which must be the same at all parties.
        party: this party's table.
        settings: addresses, certificates and time limits.
        preprocessing: the folder for the preprocessed material.
        on_round: is called with the number of rounds of the training that have their material, and the total.

    Raises:
        ConfigError: the protocol family of the job has no offline phase, or an argument is invalid.
    """
    parties = settings.peers.parties
    check_role(job, party, settings.peers)
    folder = Path(preprocessing)
    if (material := material_folder(folder, party, run_key(job, party))) is not None:
        check_unlocked(material)

    def talk(channel: Channel) -> None:
        channel.clock.stage = Stage.OFFLINE
        run_offline_phase(job, party, channel, parties=parties, folder=folder, on_round=on_round)

    handshake = {"job": job.to_dict(), "parties": list(parties), "task": "prepare"}
    run_session(
        party.name,
        settings,
        handshake,
        talk,
        ledger=DisclosureLedger.open(party.name, None),
        resumes=True,
        needs=SessionNeeds({folder: 0}),
    )
    eventlog.emit(party.name, "preprocessing finished", {})
