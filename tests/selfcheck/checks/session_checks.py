"""Checks of the parts around protocols: handshake, frames, leak checks, and the consent sheet.

Each creates something that must be refused, and reports a finding if it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from builders import CKKS_JOB, cancer_parties, make_job

from securevfl.audit.transcript_checks import Outcome
from securevfl.base.roles import Roles
from securevfl.consent import leak_check
from securevfl.consent.consent_sheet import explain
from securevfl.data import datasets
from securevfl.data.party import Party
from securevfl.disclosure.counts import RunShape
from securevfl.errors import ConfigError, FrameError, IdError, LeakageError, ProtocolError, SecureVFLError
from securevfl.job import Job
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.engines import Ckks
from securevfl.protocols.handshake import RunHello, StopDecision
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.sums.cipher_sum import CipherSum
from securevfl.protocols.sums.mask_keys import SumPublicKey
from securevfl.protocols.sums.pairwise_sum import PairwiseSum
from securevfl.protocols.sums.tree_sum import TreeSum
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import encode_frame
from securevfl.runtime.inbox import Inbox
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from securevfl.training.session import take_part
from securevfl.training.simulate import simulate

_JOB: dict[str, Any] = CKKS_JOB | {"batch_size": 64, "accepts": ()}


def _expect(what: str, error: type[SecureVFLError], work: Callable[[], Any]) -> Outcome:
    outcome = Outcome()
    try:
        work()
    except error:
        return outcome
    except SecureVFLError as cause:
        outcome.add("refusal", what, f"raises {type(cause).__name__} instead of {error.__name__}")
        return outcome
    outcome.add("refusal", what, "accepted")
    return outcome


def _meet(jobs: dict[str, Job], tables: list[Party]) -> None:
    """Run each party with a separate job, as organisations would."""
    bank, shop = tables

    def play(party: Party) -> Callable[[Channel], Any]:
        return lambda channel: take_part(jobs[party.name], party, channel, parties=[bank.name, shop.name])

    run_threads({party.name: play(party) for party in tables}, WallClock, timeout=20.0)


def other_job() -> Outcome:
    """Check that a peer that runs another job is refused at once."""
    jobs = {"bank": make_job(_JOB), "shop": make_job(_JOB, seed=1)}
    return _expect("another job", ConfigError, lambda: _meet(jobs, cancer_parties(rows=128)))


def other_order() -> Outcome:
    """Check that a peer whose rows are in another order is refused."""
    bank, shop = cancer_parties(rows=128)
    ids = np.arange(len(bank))
    parties = [Party(party.name, party.X, party.y, ids=item) for party, item in ((bank, ids), (shop, ids[::-1]))]
    return _expect(
        "rows in another order", IdError, lambda: _meet(dict.fromkeys(("bank", "shop"), make_job(_JOB)), parties)
    )


def order_is_keyed() -> Outcome:
    """Check that the digest of the row order changes with the session, so that two runs cannot be linked by it."""
    outcome = Outcome()
    parties = [Party(party.name, party.X, party.y, ids=np.arange(len(party))) for party in cancer_parties(rows=128)]
    orders, sessions = [], []
    for _ in range(2):
        events: list[Event] = []
        simulate(make_job(_JOB), parties, observe=events.append)
        meetings = [event.message for event in events if isinstance(event.message, RunHello)]
        orders.append({meeting.order for meeting in meetings})
        sessions.append(len(meetings))
    if orders[0] & orders[1]:
        outcome.add("fresh", "all", "the digest of the row order repeats in another session")
    return outcome


def frames() -> Outcome:
    """Check that frames are refused if they are replayed, out of order, or of another session, sender or receiver."""
    session, other = bytes(16), bytes([1]) * 16
    outcome = Outcome()

    def frame(**keys: Any) -> bytes:
        header: dict[str, Any] = {"session": session, "sender": "shop", "receiver": "bank", "seq": 0}
        return encode_frame(StopDecision(False, is_best=False, roll_back=False), **(header | keys))

    def deliver(*data: bytes, peer: str = "shop") -> Callable[[], None]:
        def work() -> None:
            inbox = Inbox("bank", ["shop", "telco"], session)
            for one in data:
                inbox.deliver(one, peer=peer)

        return work

    for what, error, work in (
        ("a frame of another session", ProtocolError, deliver(frame(session=other))),
        ("a replayed frame", FrameError, deliver(frame(), frame())),
        ("a frame ahead of its turn", FrameError, deliver(frame(seq=1))),
        ("a frame in another's name", ProtocolError, deliver(frame(sender="telco"))),
        ("a frame from no peer", ProtocolError, deliver(frame(sender="clinic"), peer="clinic")),
        ("a frame for another party", ProtocolError, deliver(frame(receiver="telco"))),
    ):
        outcome = outcome.merge(_expect(what, error, work))
    return outcome


def message_types() -> Outcome:
    """Check that a message of another type than expected is refused."""
    outcome = Outcome()

    def send(channel: Channel) -> None:
        channel.send("bank", SumPublicKey(bytes(32)))

    def receive(channel: Channel) -> None:
        channel.recv("shop", StopDecision)

    return outcome.merge(
        _expect(
            "a message of another type",
            ProtocolError,
            lambda: run_threads({"bank": receive, "shop": send}, WallClock, timeout=5.0),
        )
    )


def rank_leak() -> Outcome:
    """Check that a gradient that determines g is refused at the start, and is in the job's list of leaks."""
    tables = cancer_parties(rows=128)
    return _expect("p >= n c", LeakageError, lambda: simulate(make_job(_JOB, batch_size=14), tables)).merge(
        _named(make_job(_JOB, batch_size=14), 15, 14, "rank")
    )


def reshuffle_leak() -> Outcome:
    """Check that batches that are shuffled again in each epoch are refused with an encrypted residual."""
    return _expect(
        "reshuffled batches", LeakageError, lambda: simulate(make_job(_JOB, reshuffle=True), cancer_parties(rows=128))
    )


def single_leak() -> Outcome:
    """Check that a sum that hides parts is refused for a single part."""
    job = make_job(_JOB, protocol=Protocol(sum=CipherSum(), residual=Ckks()))
    return _expect("a hiding sum of one part", LeakageError, lambda: simulate(job, cancer_parties(rows=128)))


def columns_leak() -> Outcome:
    """Check that exchanges that span columns are refused, and far fewer exchanges if columns are 0 and 1."""
    outcome = _expect(
        "exchanges that span columns",
        LeakageError,
        lambda: simulate(make_job(_JOB, epochs=8), cancer_parties(rows=128)),
    )
    bank = cancer_parties(rows=128)[0]
    bits = Party("shop", np.random.default_rng(0).integers(0, 2, (128, 12)).astype(np.float64), aligned=True)
    return outcome.merge(
        _expect("columns of 0/1", LeakageError, lambda: simulate(make_job(_JOB, epochs=1), [bank, bits]))
    )


def sequential_leak() -> Outcome:
    """Check that parties that train one at a time are refused with a sum that hides parts."""
    rows = np.arange(128, dtype=np.intp)
    tables = [party.take(rows) for party in datasets.breast_cancer(parties=3)]
    job = make_job(_JOB, optimizer=FedBCD(lr=0.1, mode="sequential"), epochs=1, test_fraction=0.2)
    return _expect("sequential sums", LeakageError, lambda: simulate(job, tables))


def _named(job: Job, columns: int, rows: int, name: str) -> Outcome:
    outcome = Outcome()
    sizes = RunShape("bank", rows, 0, 1, rows, job.epochs, 1, {"shop": columns}, {"bank": 1, "shop": columns})
    if name not in {leak.name for leak in leak_check.leaks(job, sizes)}:
        outcome.add("refusal", "leaks", f"{name} is not named")
    return outcome


def consent_sheet() -> Outcome:
    """Check that the sheet lists every message that a party receives in a run, with its disclosure."""
    outcome = Outcome()
    parties = [party.take(np.arange(128, dtype=np.intp)) for party in datasets.breast_cancer(parties=4)]
    for sums in (TreeSum(), PairwiseSum(), CipherSum()):
        job = make_job(_JOB, protocol=Protocol(sum=sums, residual=Ckks()))
        messages = explain(job, parties).split("\nMessages\n")[1]
        places = {party.name: f"\n  {party.name} (" for party in parties}
        events: list[Event] = []
        simulate(job, parties, observe=events.append)
        seen = {(event.me, type(event.message).__name__) for event in events if event.direction == "recv"}
        for name, message in sorted(seen):
            section = ("\n" + messages).split(places[name])[1].split("\n\n")[0]
            if f"{message} from" not in section:
                outcome.add("declared", name, f"the sheet does not state that it receives {message}")
    return outcome


def _quiet(roles: Mapping[str, Callable[[Channel], None]]) -> None:
    run_threads(roles, WallClock, timeout=5.0)


def _party_context(channel: Channel) -> PartyContext:
    return PartyContext(channel, Roles.sum("A", ("P1", "P2", "P3")), Meter(channel.clock, channel.counters))


CHECKS: dict[str, Callable[[], Outcome]] = {
    "another job is refused": other_job,
    "another row order is refused": other_order,
    "row order is keyed": order_is_keyed,
    "frames are checked": frames,
    "message types are checked": message_types,
    "leak check: rank": rank_leak,
    "leak check: reshuffle": reshuffle_leak,
    "leak check: single passive": single_leak,
    "leak check: columns": columns_leak,
    "leak check: sequential": sequential_leak,
    "consent sheet is complete": consent_sheet,
}
