"""Joint prediction between organisations: each brings its part of the model and its columns of new rows.

1. all <-> all           Asked    which training the part is of, rows, keyed digest of the row order, role in it
2. all                   the method's own messages (`securevfl.methods`); the party that asks alone learns f

What a party learns is what it learns in the evaluation of a training, for these rows. Passive parties enter the scores
that they tell in their disclosure ledgers before step 2.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.crypto.scheme import Floats
from securevfl.data.ids import id_digest
from securevfl.data.store import OnRows
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, IdError, PartiesError, TableError
from securevfl.job import Job
from securevfl.methods.base import AskedRows, Player
from securevfl.organisations.conversation import Venue, converse
from securevfl.protocols.base import Declared, Desk, Reveal, Seat
from securevfl.roles import Roles
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.meter import Meter
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import NewRows, rows_of_array
from securevfl.transport.peers import Peers


class Asked(Message, frozen=True):
    """What a party says of its part and its rows."""

    run: str
    rows: int
    order: bytes
    role: str


def declares(roles: Roles) -> list[Declared]:
    """What this message reveals."""
    said = Reveal(
        "plain", "which training the sender's part is of; its role; how many rows; keyed digest of their order"
    )
    return [Declared(Asked, *pair, said) for pair in roles.pairs()]


@dataclass(frozen=True)
class Predicted:
    """At the party that asks. decision: f (m x c). label (m,): likeliest class, or the number in a regression.

    proba (m x classes) in the order of `classes`; None in a regression. A party without labels does not know what
    classes are called, or the scale of a number: its labels are places in the order of the classes, or f.
    """

    decision: Floats
    label: NDArray[Any]
    proba: Floats | None
    classes: NDArray[Any]


def predict_with(
    part: ModelPart,
    X: ArrayLike,
    peers: Peers | str | Path = "peers.toml",
    *,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
) -> Predicted | None:
    """Predicts new rows together with the parties in `peers`; the outcome at the party that
    asks (`ModelPart.asker`), None at the others.

    X: this party's columns (m x d), or one row (d,), in the order that all parties share; with column names they are
    found by name. ids: compared with those of the others, if both have them. The rest as in `join`.

    Raises TableError that names columns which are missing, ConfigError if the parts are not of one training, IdError or
    TableError if the rows are not the same, TransportError as `join`.
    """
    found: list[Predicted] = []
    predict_rows(
        part,
        rows_of_array(part, X, ids),
        peers,
        on_block=lambda _, block: found.append(block),
        ledger=ledger,
        certs=certs,
        listen=listen,
        timeout=timeout,
        patience=patience,
    )
    if not found:
        return None
    return Predicted(
        np.concatenate([block.decision for block in found]),
        np.concatenate([block.label for block in found]),
        None if found[0].proba is None else np.concatenate([block.proba for block in found if block.proba is not None]),
        found[0].classes,
    )


def predict_rows(
    part: ModelPart,
    rows: NewRows,
    peers: Peers | str | Path = "peers.toml",
    *,
    on_block: Callable[[list[Any] | None, Predicted], None],
    on_rows: OnRows | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
) -> None:
    """`predict_with` in blocks of rows, so that memory does not grow with the table.

    on_block(ids, outcome) is called at the party that asks with each block in order; on_rows(rows done, of) at all.
    """
    venue = Venue.of(peers, certs, listen, timeout, patience)
    check_parties_of(part, venue.peers)
    own_ledger = DisclosureLedger.of(part.name, ledger)

    def talk(channel: Channel) -> None:
        answer_rows(part, rows, channel, own_ledger, on_block=on_block, on_rows=on_rows)

    terms = {"job": part.job, "parties": list(venue.peers.parties), "task": "predict"}
    converse(part.name, venue, terms, talk)
    eventlog.emit(part.name, "predicted", {"rows": rows.count})


def check_parties_of(part: ModelPart, peers: Peers) -> None:
    """PartiesError unless the peers are those of the training."""
    if tuple(part.parties) != peers.parties:
        raise PartiesError(
            f"the model of {', '.join(part.parties)} was expected to meet these parties, the file of peers names "
            f"{', '.join(peers.parties)}; bring the peers of the training"
        )


def answer_rows(
    part: ModelPart,
    rows: NewRows,
    channel: Channel,
    ledger: DisclosureLedger,
    *,
    on_block: Callable[[list[Any] | None, Predicted], None],
    on_rows: OnRows | None = None,
) -> None:
    """This party's side of one prediction over a channel where all parties are there; the rest as `predict_rows`."""
    player, done = _meet(part, rows, channel, ledger), 0
    for ids, X in rows.blocks():
        scaled = part.scaled(X)
        f = player.decision(scaled, _asked(part.name, ids, X))  # 2
        if f is not None:
            on_block(ids, predicted(part, f))
        done += len(scaled)
        if on_rows is not None:
            on_rows(done, rows.count)


def predicted(part: ModelPart, f: Floats) -> Predicted:
    """What f (m x c) says, by the part of the party that asks."""
    loss, classes = Job.from_dict(part.job).model.loss, part.classes
    if not loss.classifies:
        scale, mean = (1.0, 0.0) if classes is None else (classes[1], classes[0])
        return Predicted(f, np.asarray(f[:, 0] * scale + mean), None, np.array([mean, scale]))
    proba = loss.proba(f)
    named = np.arange(proba.shape[1]) if classes is None else classes
    return Predicted(f, np.asarray(named[proba.argmax(axis=1)]), proba, named)


def _meet(part: ModelPart, rows: NewRows, channel: Channel, ledger: DisclosureLedger) -> Player:
    """Compares with the others, enters the scores that another party is told, and takes this party's place."""
    asker = part.asker
    own = Asked(
        part.run,
        rows.count,
        hmac.digest(channel.session, rows.order, hashlib.sha256) if rows.order else b"",
        part.role,
    )
    others = [name for name in part.parties if name != part.name]
    for name in others:
        channel.send(name, own)  # 1
    heard = {part.name: own} | {name: channel.recv(name, Asked) for name in others}  # 1
    for name in others:
        _compare(part.name, own, name, heard[name])
    if part.name != asker:
        scores = Disclosure("scores", asker, tuple(others), rows.count * part.outputs, 0)
        ledger.answer(part.run, channel.session.hex(), scores)
    roles = Roles.of((name, heard[name].role) for name in part.parties)
    desk = Desk(part.run, scores=ledger.scores)
    meter = Meter(channel.clock, channel.books)
    seat = Seat(channel, roles, meter, outputs=part.outputs, desk=desk, model=part.model)
    job = Job.from_dict(part.job)
    return job.method.player(job, seat, len(part.mean), part.state)


def _asked(me: str, ids: list[Any] | None, X: Floats) -> AskedRows | None:
    """The rows of a block as they are named, if they are."""
    return None if ids is None else AskedRows([id_digest(me, each) for each in ids], np.asarray(X, np.float64))


def _compare(me: str, own: Asked, name: str, other: Asked) -> None:
    if other.run != own.run:
        raise ConfigError(
            f"{name} and {me} hold parts of different trainings ({other.run[:8] or 'none'}, {own.run[:8] or 'none'}); "
            "bring the parts that one training has saved"
        )
    if other.rows != own.rows:
        raise TableError(f"{name} has {other.rows} rows to predict, {me} {own.rows}; align the tables first")
    if other.order and own.order and not hmac.compare_digest(other.order, own.order):
        raise IdError(f"{name} and {me} hold the new rows in different order; align the tables first")
