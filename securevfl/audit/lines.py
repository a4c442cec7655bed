"""Checks on what surrounds the protocols: handshake, frames, guards, and the consent sheet.

Each makes what must be refused and finds it accepted, or finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from securevfl import datasets, leakage
from securevfl.audit.checker import Outcome
from securevfl.channel import Channel, Event, Inbox
from securevfl.clock import WallClock
from securevfl.codec import encode_frame
from securevfl.errors import ConfigError, FrameError, IdError, LeakageError, ProtocolError, SecureVFLError
from securevfl.explain import explain
from securevfl.job import Job, Protocol
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedBCD
from securevfl.party import Party
from securevfl.protocols.base import Reals, Seat
from securevfl.protocols.cipher_sum import CipherSum
from securevfl.protocols.dropout_sum import Survivors
from securevfl.protocols.engines import Ckks
from securevfl.protocols.pairwise_sum import PairwiseSum
from securevfl.protocols.tree_sum import TreeSum
from securevfl.session import Hello, Verdict, take_part
from securevfl.simulate import simulate
from securevfl.transport.threads import run_threads


def _job(**keys: Any) -> Job:
    own: dict[str, Any] = {"model": Logistic(), "optimizer": FedBCD(lr=0.1), "batch_size": 64, "epochs": 1}
    return Job(**(own | {"protocol": Protocol(residual=Ckks())} | keys))


def _tables() -> list[Party]:
    rows = np.arange(128, dtype=np.intp)
    return [party.take(rows) for party in datasets.breast_cancer()]


def _expect(what: str, error: type[SecureVFLError], work: Callable[[], Any]) -> Outcome:
    outcome = Outcome()
    try:
        work()
    except error:
        return outcome
    except SecureVFLError as cause:
        outcome.add("refusal", what, f"met with {type(cause).__name__}, {error.__name__} was expected")
        return outcome
    outcome.add("refusal", what, "accepted")
    return outcome


def _meet(jobs: dict[str, Job], tables: list[Party]) -> None:
    """Runs each party with its own job, as organisations would."""
    bank, shop = tables

    def play(party: Party) -> Callable[[Channel], Any]:
        return lambda channel: take_part(jobs[party.name], party, channel, active=bank.name, passives=[shop.name])

    run_threads({party.name: play(party) for party in tables}, WallClock, timeout=20.0)


def other_job() -> Outcome:
    """A peer that runs another job is refused at once."""
    jobs = {"bank": _job(), "shop": _job(seed=1)}
    return _expect("another job", ConfigError, lambda: _meet(jobs, _tables()))


def other_order() -> Outcome:
    """A peer whose rows are in another order is refused."""
    bank, shop = _tables()
    ids = np.arange(len(bank))
    for party, own in ((bank, ids), (shop, ids[::-1])):
        party.ids = own.astype(str)
    return _expect(
        "rows in another order", IdError, lambda: _meet(dict.fromkeys(("bank", "shop"), _job()), [bank, shop])
    )


def order_is_keyed() -> Outcome:
    """The digest of the row order changes with the session, so that two runs cannot be linked by it."""
    outcome = Outcome()
    parties = _tables()
    for party in parties:
        party.ids = np.arange(len(party)).astype(str)
    orders, sessions = [], []
    for _ in range(2):
        events: list[Event] = []
        simulate(_job(), parties, observe=events.append)
        hellos = [event.message for event in events if isinstance(event.message, Hello)]
        orders.append({hello.order for hello in hellos})
        sessions.append(len(hellos))
    if orders[0] & orders[1]:
        outcome.add("fresh", "all", "the digest of the row order repeats in another session")
    return outcome


def frames() -> Outcome:
    """Frames of another session, replayed, out of order, from others or for others are refused."""
    session, other = bytes(16), bytes([1]) * 16
    outcome = Outcome()

    def frame(**keys: Any) -> bytes:
        own: dict[str, Any] = {"session": session, "sender": "shop", "receiver": "bank", "seq": 0}
        return encode_frame(Verdict(False), **(own | keys))

    def deliver(*data: bytes, peer: str = "shop") -> Callable[[], None]:
        def work() -> None:
            inbox = Inbox("bank", ["shop", "telco"], session)
            for one in data:
                inbox.deliver(one, peer=peer)

        return work

    for what, error, work in (
        ("a frame of another session", ProtocolError, deliver(frame(session=other))),
        ("a frame that came before", FrameError, deliver(frame(), frame())),
        ("a frame ahead of its turn", FrameError, deliver(frame(seq=1))),
        ("a frame in another's name", ProtocolError, deliver(frame(sender="telco"))),
        ("a frame from no peer", ProtocolError, deliver(frame(sender="clinic"), peer="clinic")),
        ("a frame for another party", ProtocolError, deliver(frame(receiver="telco"))),
    ):
        outcome = outcome.merge(_expect(what, error, work))
    return outcome


def message_types() -> Outcome:
    """A message of another type than expected is refused."""
    outcome = Outcome()

    def send(channel: Channel) -> None:
        channel.send("bank", Survivors(["bank"], []))

    def receive(channel: Channel) -> None:
        channel.recv("shop", Verdict)

    return outcome.merge(
        _expect(
            "a message of another type",
            ProtocolError,
            lambda: run_threads({"bank": receive, "shop": send}, WallClock, timeout=5.0),
        )
    )


def rank_guard() -> Outcome:
    """A gradient that determines g is refused where the job starts, and in the list of its leaks."""
    tables = _tables()
    return _expect("p >= n c", LeakageError, lambda: simulate(_job(batch_size=14), tables)).merge(
        _named(_job(batch_size=14), {"shop": 15}, 14, "rank")
    )


def reshuffle_guard() -> Outcome:
    """Reshuffled batches under a sealed residual are refused."""
    return _expect("reshuffled batches", LeakageError, lambda: simulate(_job(reshuffle=True), _tables()))


def single_guard() -> Outcome:
    """A hiding sum of one part is refused."""
    job = _job(protocol=Protocol(sum=CipherSum(), residual=Ckks()))
    return _expect("a hiding sum of one part", LeakageError, lambda: simulate(job, _tables()))


def _named(job: Job, columns: dict[str, int], rows: int, name: str) -> Outcome:
    outcome = Outcome()
    if name not in {leak.name for leak in leakage.leaks(job, columns, batch_rows=rows, outputs=1)}:
        outcome.add("refusal", "leaks", f"{name} is not named")
    return outcome


def consent_sheet() -> Outcome:
    """Every message that a party receives in a run stands in its part of the sheet, with what it reveals."""
    outcome = Outcome()
    parties = [party.take(np.arange(128, dtype=np.intp)) for party in datasets.breast_cancer(parties=4)]
    for sums in (TreeSum(), PairwiseSum(threshold=0.7), CipherSum()):
        job = _job(protocol=Protocol(sum=sums, residual=Ckks()))
        sheet = explain(job, parties)
        places = {party.name: f"\n{party.name} (" for party in parties}
        events: list[Event] = []
        simulate(job, parties, observe=events.append)
        seen = {(event.me, type(event.message).__name__) for event in events if event.direction == "recv"}
        for name, message in sorted(seen - {(event.me, "Hello") for event in events}):
            own = ("\n" + sheet).split(places[name])[1].split("\n\n")[0]
            if f"{message} from" not in own:
                outcome.add("declared", name, f"the sheet does not say that it receives {message}")
    return outcome


def survivors_guard() -> Outcome:
    """A member of a sum with a threshold opens no share for a list of survivors below it."""

    def collector(channel: Channel) -> None:
        seat = _seat(channel)
        role = PairwiseSum(threshold=3).role(seat)
        assert role is not None
        from securevfl.protocols.dropout_sum import Commit, DoubleMasked, DropoutCollector, Shares, Told

        assert isinstance(role, DropoutCollector)
        role._hand_out(role._gather(Commit, seat.passives))
        told = role._gather(Told, seat.passives)
        role._gather(DoubleMasked, seat.passives)
        one, other = seat.passives[:2]  # whose tags for each other come first
        for name, peer in ((one, other), (other, one)):
            channel.send(name, Survivors([one, other], [told[peer].tags[0]]), "")
        for name in seat.passives[:2]:
            channel.recv(name, Shares, "")

    def member(channel: Channel) -> None:
        role = PairwiseSum(threshold=3).role(_seat(channel))
        role.contribute(np.zeros((4, 1)), Reals())

    roles = {"active": collector} | dict.fromkeys(("P1", "P2", "P3"), member)
    return _expect("two survivors of a threshold of three", ProtocolError, lambda: _quiet(roles))


def _quiet(roles: Mapping[str, Callable[[Channel], None]]) -> None:
    run_threads(roles, WallClock, timeout=5.0)


def _seat(channel: Channel) -> Seat:
    from securevfl.costs import Meter

    seat = Seat(
        channel=channel,
        active="active",
        passives=("P1", "P2", "P3"),
        meter=Meter(channel.clock, channel.ledger),
    )
    return replace(seat)


CHECKS: dict[str, Callable[[], Outcome]] = {
    "another job is refused": other_job,
    "another row order is refused": other_order,
    "row order is keyed": order_is_keyed,
    "frames are checked": frames,
    "message types are checked": message_types,
    "rank guard": rank_guard,
    "reshuffle guard": reshuffle_guard,
    "single passive guard": single_guard,
    "consent sheet is complete": consent_sheet,
    "survivors guard": survivors_guard,
}
