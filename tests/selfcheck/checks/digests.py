"""Digests, tags and encrypted bytes are compared completely: each is altered at its first, middle and last byte.

bound       a peer accepts an altered value
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.transfers import base_transfers, okvs, ot_extension, punctured_seeds
from securevfl.crypto.transfers.field_transfers import COLUMNS, TransferReceiver, TransferSender
from securevfl.data import datasets
from securevfl.data.party import Party
from securevfl.errors import SecureVFLError
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedSGD
from securevfl.protocols.engines import Ckks, Engine, Paillier
from securevfl.protocols.handshake import RunHello
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.sealed_residual import BlindedProduct, OpenedProduct, ResidualCiphertext
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.training.simulate import simulate
from selfcheck.checks.alignment_checks import record_alignment

PLACES = ("first", "middle", "last")
_ROWS = 40


def altered(data: bytes, place: str) -> bytes:
    """Return the same bytes with one flipped bit."""
    at = {"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[place]
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@dataclass(frozen=True)
class Field:
    """A field of a message that its receiver compares: `part` selects the compared bytes."""

    message: type[Message]
    name: str
    run: Callable[[], object]
    part: tuple[int, int | None] = (0, None)

    @property
    def label(self) -> str:
        return f"{self.message.__name__}.{self.name}"


@contextmanager
def altering(field: Field, place: str) -> Iterator[list[str]]:
    """While the block runs, alter the first received message of this kind whose field is not empty."""
    decode, done = Channel._decode_arrival, list[str]()

    def turned(value: Any) -> Any:
        if isinstance(value, bytes):
            start, stop, _ = slice(*field.part).indices(len(value))
            return value[:start] + altered(value[start:stop], place) + value[stop:] if value[start:stop] else value
        for number, item in enumerate(value):
            if item:
                return [*value[:number], turned(item), *value[number + 1 :]]
        return value

    def take(self: Channel, arrival: Any, kinds: Any) -> Any:
        sender, message = decode(self, arrival, kinds)
        if type(message) is not field.message or done or not getattr(message, field.name):
            return sender, message
        values = {name: getattr(message, name) for name in message.__struct_fields__}
        other = turned(values[field.name])
        if other == values[field.name]:
            return sender, message
        done.append(self.me)
        return sender, type(message)(**values | {field.name: other})

    with mock.patch.object(Channel, "_decode_arrival", take):
        yield done


def _train(residual: Engine | str) -> None:
    """Train one visit of two parties that know their rows by ids."""
    parties = [party.take(np.arange(120, dtype=np.intp)) for party in datasets.breast_cancer(parties=2)]
    named = [Party(party.name, party.X, party.y, ids=np.arange(120)) for party in parties]
    protocol = Protocol(residual=residual)
    simulate(Job(model=Logistic(), optimizer=FedSGD(lr=0.1), batch_size=120, epochs=1, protocol=protocol), named)


def _open() -> None:
    _train("open")


def _lattice() -> None:
    _train(Ckks())


def _paillier() -> None:
    _train(Paillier(bits=2048))


FIELDS = (
    Field(RunHello, "job", _open),
    Field(RunHello, "order", _open),
)
# a message of an engine contains the digest of its key after its first bytes
LATTICE = (
    Field(ResidualCiphertext, "ciphertext", _lattice, (4, 20)),
    Field(BlindedProduct, "ciphertext", _lattice, (4, 20)),
    Field(OpenedProduct, "values", _lattice, (4, 20)),
)
PAILLIER_FIELDS = (
    Field(ResidualCiphertext, "ciphertext", _paillier, (6, 22)),
    Field(BlindedProduct, "ciphertext", _paillier, (6, 22)),
    Field(OpenedProduct, "values", _paillier, (6, 22)),
)


def fields(these: tuple[Field, ...] = FIELDS) -> Outcome:
    """Return every field of a message that is compared with something."""
    outcome = Outcome()
    for field in these:
        for place in PLACES:
            with altering(field, place) as done:
                try:
                    field.run()
                except SecureVFLError:
                    continue
            what = f"takes {field.label} altered in its {place} byte" if done else f"{field.label} was not seen"
            outcome.add("bound", done[0] if done else "audit", what)
    return outcome


def common() -> Outcome:
    """Check that an id is common only if all of its 128 bits agree, by points and by transfers."""
    outcome = Outcome()
    ids = {f"P{k}": [str(100 + i) for i in range(_ROWS)] for k in range(3)}
    encode = okvs.encode
    for at in (0, 7, 8, 15):
        done: list[int] = []

        def one_off(keys: Any, values: Any, *, at: int = at, done: list[int] = done) -> Any:
            if values.shape == (_ROWS, 2) and not done:
                octets = bytearray(values.astype("<u8").tobytes())
                octets[at] ^= 1  # only in the first id
                values = np.frombuffer(bytes(octets), "<u8").reshape(-1, 2).astype(np.uint64)
                done.append(at)
            return encode(keys, values)

        with mock.patch.object(okvs, "encode", one_off):
            _, aligned = record_alignment(ids)
        if not done or any(len(rows) != _ROWS - 1 for rows in aligned.values()):
            outcome.add("bound", "active", f"an id whose digests differ in byte {at} alone is called common")
    return outcome


def columns() -> Outcome:
    """Check that the tags of columns of transfers, 16 bytes for each column, are compared to their last byte."""
    outcome = Outcome()
    secret, choices = punctured_seeds.fresh_secret()
    base, coin = base_transfers.BaseSender(), os.urandom(32)
    points, keys = base_transfers.receive_keys(base.offer, choices)
    sums, seeds = punctured_seeds.grow(base.pairs(points), coin)
    punctured = punctured_seeds.puncture(secret, keys, coin, sums)
    message, _ = TransferReceiver(seeds, coin, 2, 8).extend(_ROWS)
    size = ot_extension.CHECK_BYTES * (COLUMNS + 1)

    def again() -> TransferSender:
        """Return a sender that has not processed a block yet."""
        return TransferSender(secret, punctured, coin, 2, 8)

    again().extend(_ROWS, message)
    for number in (1, COLUMNS // 2, COLUMNS):  # the first is the tag of choices, from which the others are computed
        for place in PLACES:
            at = len(message) - size + number * ot_extension.CHECK_BYTES
            tag = altered(message[at : at + ot_extension.CHECK_BYTES], place)
            with suppress(SecureVFLError):
                again().extend(_ROWS, message[:at] + tag + message[at + ot_extension.CHECK_BYTES :])
                outcome.add("bound", "offerer", f"takes the tag of column {number} altered in its {place} byte")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "whole digests of messages": fields,
    "whole digests of lattice keys": lambda: fields(LATTICE),
    "whole digests of paillier keys": lambda: fields(PAILLIER_FIELDS),
    "whole digests of common ids": common,
    "whole digests of columns": columns,
}
