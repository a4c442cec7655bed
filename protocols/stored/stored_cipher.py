"""A stored sum under homomorphic encryption, by a key that all who are told sums share (see `stored_sum`).

0. worker <-> reader         X25519 public keys, and every worker's fresh key K_k, sealed for each reader (`sum_keys`)
   first reader -> reader    the public key pk, and what makes each other reader a holder of the secret key, sealed
                             under a key that follows from its own K_k
   first reader -> others    pk, to the server and to workers that are told no sums
1. worker k -> server        [[H_k, marks of (k, batch, version)]]
2. server -> reader          [[sum of the latest]], re-randomised, and their versions
   reader                    decrypts the sum, and takes the marks of these versions off

The server has pk alone, so payloads tell it nothing under the engine's assumption. A reader, which has the secret key,
is sent re-randomised totals alone: these tell the sum and nothing of its parts (`crypto.lattice.lattice_sum`,
`crypto.paillier.paillier_sum`). Marks are four numbers of a keystream under K_k; they must come out of the total as the
versions say. Whoever has pk can add to a total, which then is a wrong sum: that the server adds what it was sent is
assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Self

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR, READER
from securevfl.crypto.prg import Prg, derive_key
from securevfl.crypto.scheme import Adder, Secret, SumHolder
from securevfl.errors import KeyMismatch, ProtocolError, RangeError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.engines import ENGINES, AnyEngine, Ckks, Encrypted
from securevfl.protocols.seat import Seat
from securevfl.protocols.stored.stored_sum import OTHERS, SPACE, StoredServer, StoredSum, StoredWorker
from securevfl.protocols.sums.sum_masks import KEY_MESSAGES, own_keys
from securevfl.runtime.door import Entry, Telling

MARKS = 4
_DOMAIN = "stored sum under encryption"
_NEAR = 2.0**-16  # of the bound and for each payload: engines round to 2^-17 or finer


class StoredKey(Telling, frozen=True):
    """The public key, and for a reader the secret key sealed; empty for all others."""

    public: bytes
    secret: bytes


class StoredCipher(Encrypted, StoredSum):
    """Payloads under a Paillier or CKKS key whose secret half all readers have and the server has not."""

    name: ClassVar[str] = "cipher"
    pushed: ClassVar[Reveal] = Reveal("ciphertext", READER)
    pulled: ClassVar[Reveal] = Reveal("output", OTHERS)
    engine: AnyEngine = Ckks()
    """The encryption under which payloads are added up."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        return {f"cipher {name}": cls(engine=kind()) for name, kind in ENGINES.items()}

    @property
    def label(self) -> str:
        return self.engine.name

    def worker(self, seat: Seat, readers: Collection[str]) -> StoredWorker:
        keys = own_keys(seat, readers, _DOMAIN)  # 0
        scheme, first = seat.meter.additive(self.engine.sums()), key_maker(seat, readers)
        sealing, lane = derive_key(keys[first], "secret key") if seat.me in readers else b"", seat.lane
        holder: SumHolder | None = None
        if seat.me == first:
            holder = scheme.sum_keygen()
            public, shared = holder.public, holder.share(sealing)
            for other in (seat.collector, *seat.contributors):
                if other != first:
                    reads = other in readers
                    leave = seat.channel.tell(Entry(other, "keys" if reads else "sizes", 1, 64))
                    seat.channel.send(other, StoredKey(public, shared if reads else b""), lane, told=leave)  # 0
        else:
            told = seat.channel.recv(first, StoredKey, lane)  # 0
            public = told.public
            if seat.me in readers:
                holder = scheme.joined(public, told.secret, sealing)
        return CipherWorker(seat, keys, holder, scheme.adder(public))

    def server(self, seat: Seat, readers: Collection[str]) -> StoredServer:
        told = seat.channel.recv(key_maker(seat, readers), StoredKey, seat.lane)  # 0
        return CipherServer(seat, seat.meter.additive(self.engine.sums()).adder(told.public))

    def declares(self) -> list[Declared]:
        return [
            *KEY_MESSAGES,
            Declared(StoredKey, READER, COLLECTOR, Reveal("public")),
            Declared(
                StoredKey, READER, CONTRIBUTOR, Reveal("output", "the public key, to a reader the secret one too")
            ),
        ]


def key_maker(seat: Seat, readers: Collection[str]) -> str:
    """Return the reader who makes the key: the first in the order of the cast."""
    return next(name for name in seat.contributors if name in readers)


class Marks(Secret):
    """The marks of one session by worker, batch and version, of the workers whose keys these are."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys

    def of(self, worker: str, batch: int, version: int) -> Floats:
        """Draw `MARKS` numbers, uniform over the range of half the bound, for this payload."""
        key = derive_key(self._keys[worker], batch, version)
        words = Prg(key, "marks of a stored payload").array(MARKS, np.uint32)
        return np.asarray((words * 2.0**-32 - 0.5) * SPACE.bound)


class CipherWorker(StoredWorker):
    """Encrypts its own payload, and as a reader decrypts totals."""

    def __init__(self, seat: Seat, keys: Mapping[str, bytes], holder: SumHolder | None, adder: Adder) -> None:
        super().__init__(seat, whole=True)
        self._marks, self._holder, self._adder = Marks(keys), holder, adder

    def _conceal(self, H: Floats, batch: int, version: int) -> bytes:
        if not np.all(np.abs(H) <= SPACE.bound):
            raise RangeError(f"{self.me}: a forward output is not finite or beyond {SPACE.bound:g}; lower the step")
        values = np.append(H.ravel(), self._marks.of(self.me, batch, version))
        return self._adder.encrypt(values, bound=SPACE.bound, terms=len(self.workers))

    def _reveal(self, total: bytes, versions: Mapping[str, int], batch: int, shape: tuple[int, int]) -> Floats:
        assert self._holder is not None, "who reveals is a reader"
        values, count = self._holder.decrypt(total), shape[0] * shape[1]
        if len(values) != count + MARKS:
            raise ProtocolError(
                f"{self.me}: an encrypted sum of shape {shape} was expected, one of {len(values)} values and marks "
                "came; do both run the same job?"
            )
        marks = np.sum([self._marks.of(name, batch, version) for name, version in versions.items()], axis=0)
        if np.abs(values[count:] - marks).max() > _NEAR * SPACE.bound * len(versions):
            raise KeyMismatch(
                f"{self.me}: the total of batch {batch} is not that of the payloads the server names; nothing of it is "
                "used, start the session again"
            )
        return values[:count].reshape(shape)


class CipherServer(StoredServer):
    """Adds ciphertexts under the public key and re-randomises the total."""

    def __init__(self, seat: Seat, adder: Adder) -> None:
        super().__init__(seat, whole=True)
        self._adder = adder

    def _add(self, stored: Mapping[str, bytes]) -> bytes:
        return self._adder.add(*stored.values())
