"""Joint prediction between organisations: each brings its part of the model and its columns of new rows.

1. all <-> all           Asked    which training the part is of, rows, keyed digest of the row order, labels or none
2. all                   the model's own sums (`securevfl.learner`); the active party alone learns f

What a party learns is what it learns in the evaluation of a training, for these rows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl import eventlog
from securevfl.channel import Channel
from securevfl.codec import Message
from securevfl.converse import converse, read_peers
from securevfl.costs import Meter
from securevfl.crypto.curve import canonical_ids
from securevfl.crypto.scheme import Floats
from securevfl.errors import ConfigError, IdError, PartiesError, TableError
from securevfl.job import Job
from securevfl.learner import make_learner
from securevfl.part import Part
from securevfl.peers import Peers
from securevfl.protocols.base import Seat


class Asked(Message, frozen=True):
    """What a party says of its part and its rows."""

    run: str
    rows: int
    order: bytes
    labelled: bool


@dataclass(frozen=True)
class Predicted:
    """At the active party. decision: f (m x c). label (m,): likeliest class, or the number in a regression.

    proba (m x classes) in the order of `classes`; None in a regression.
    """

    decision: Floats
    label: NDArray[Any]
    proba: Floats | None
    classes: NDArray[Any]


def predict_with(
    part: Part,
    X: ArrayLike,
    peers: Peers | str | Path = "peers.toml",
    *,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
) -> Predicted | None:
    """Predicts new rows together with the parties in `peers`; the active party's outcome, None at the others.

    X: this party's columns (m x d), or one row (d,), in the order that all parties share; with column names they are
    found by name. ids: compared with those of the others, if both have them. The rest as in `join`.

    Raises TableError that names columns which are missing, ConfigError if the parts are not of one training, IdError or
    TableError if the rows are not the same, TransportError as `join`.
    """
    peers, folder = read_peers(peers, certs)
    if tuple(part.parties) != peers.parties:
        raise PartiesError(
            f"the model of {', '.join(part.parties)} was expected to meet these parties, the file of peers names "
            f"{', '.join(peers.parties)}; bring the peers of the training"
        )
    if not hasattr(X, "columns"):
        X = np.atleast_2d(np.asarray(X))
    rows = part.rows(X)
    order = b"" if ids is None else _order(part.name, ids, len(rows))

    def talk(channel: Channel) -> Floats | None:
        return _predict(part, rows, order, channel)

    terms = {"job": part.job, "active": peers.active, "passives": list(peers.passives), "task": "predict"}
    f = converse(part.name, peers, terms, talk, certs=folder, listen=listen, timeout=timeout, patience=patience)
    eventlog.emit(part.name, "predicted", {"rows": len(rows)})
    return None if f is None else predicted(part, f)


def predicted(part: Part, f: Floats) -> Predicted:
    """What f (m x c) says, by the active party's part."""
    loss, classes = Job.from_dict(part.job).model.loss, part.classes
    assert classes is not None, "the active party knows the classes"
    if not loss.classifies:
        return Predicted(f, np.asarray(f[:, 0] * classes[1] + classes[0]), None, classes)
    proba = loss.proba(f)
    return Predicted(f, np.asarray(classes[proba.argmax(axis=1)]), proba, classes)


def _predict(part: Part, rows: Floats, order: bytes, channel: Channel) -> Floats | None:
    active, *passives = part.parties
    own = Asked(
        part.run,
        len(rows),
        hmac.digest(channel.session, order, hashlib.sha256) if order else b"",
        part.classes is not None,
    )
    others = [name for name in part.parties if name != part.name]
    for name in others:
        channel.send(name, own)  # 1
    heard = {part.name: own} | {name: channel.recv(name, Asked) for name in others}  # 1
    for name in others:
        _compare(part.name, own, name, heard[name])
    seat = Seat(
        channel=channel,
        active=active,
        passives=tuple(passives),
        meter=Meter(channel.clock, channel.ledger),
        outputs=part.outputs,
    )
    workers = [name for name in part.parties if heard[name].labelled]
    learner = make_learner(Job.from_dict(part.job), seat, rows.shape[1], workers, key=part.key, theta=part.theta)
    return learner.decision(lambda block: rows[block], len(rows))  # 2


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


def _order(me: str, ids: Sequence[Any] | NDArray[Any], rows: int) -> bytes:
    try:
        own = canonical_ids(ids)
    except IdError as error:
        raise IdError(f"party {me}: {error}") from None
    if len(own) != rows:
        raise TableError(f"party {me}: one id for each of {rows} rows was expected, {len(own)} came")
    whole = hashlib.sha256()
    for each in own:
        whole.update(hashlib.blake2b(each, digest_size=16).digest())
    return whole.digest()
