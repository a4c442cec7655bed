"""Shared products of two share holders' components for all training rows: Phi = Phi_A + Phi_B modulo 2^P.

The share holders are A, the active party, and its partner B. Each has *components* of every row, small integers that it
computes from its columns (`securevfl.models.pair_components`): u (n, r_A) at A and v (n, r_B) at B. Column b r_A + a of
Phi (n, d) is a *pair*: the product of component a of A and component b of B. A share is a random-looking matrix modulo
2^P (pair_weights.py). The products are shared once, before the first iteration:

1. A <-> B   the parameters, the name of the stored shares, and whether they are those of the sender's components
2. A <-> B   shares of all products of some rows (small_products.py, with A as the sender)

Comments refer to these steps by number. If both have stored shares of the same name, which they computed together from
the same components, they use them. Shares are no masks: they may be used in any number of runs. A share holder has its
shares in memory, and from `MIN_DISK_ROWS` rows on in a file: in the folder of preprocessing, or in a temporary file if
the run has no such folder. Precomputed material for iterations refers to the shares by their name, because material of
other shares would yield wrong gradients.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from securevfl.base.disk_space import check_disks
from securevfl.base.files import atomic_writer, make_private_folder
from securevfl.base.platform_files import read_at
from securevfl.crypto.share_ring import Words
from securevfl.errors import ConfigError, ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import small_products
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.small_products import PRODUCT_ROWS, SmallIntegers, WordFactors
from securevfl.runtime.codec import Message

PAIR_FILE = "pairs.shares"
"""Name of the file with the shares, in the folder of preprocessing."""
MIN_DISK_ROWS = 100_000
"""From this number of rows on, shares are read from a file in place of memory."""

_PURPOSE = "products of components"
_MAGIC = b"SVP2"
_DIGEST_BYTES = 32
_HEADER = struct.Struct(f"<4s{NAME_BYTES}s{_DIGEST_BYTES}sQIB")


class PairGreeting(Message, frozen=True):
    """The parameters of pairs that the sender expects, and the name of its stored shares.

    Attributes:
        rows: the number of rows.
        active: the number of components of the active party.
        partner: the number of components of its partner.
        bits: the number of bits of the ring of pairs.
        scale: the integer that represents a coefficient of 1.
        name: the name of the stored shares of the sender's present components (16 bytes); empty if it has none.
    """

    rows: int
    active: int
    partner: int
    bits: int
    scale: float
    name: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner."""
    return [
        MessageDeclaration(PairGreeting, "active", "partner", Reveal("public")),
        MessageDeclaration(PairGreeting, "partner", "active", Reveal("public")),
        *small_products.declares(),
    ]


class PairColumns:
    """One share holder's shares of the products of all rows.

    Args:
        params: the parameters of pairs on which the share holders agree (pair_weights.py).
        rows: the number of rows.
        name: the name of the shares, which both share holders derive from the same random numbers.
        source: the shares (n, d) in memory, or the file that contains them, open for reading.
        in_memory: whether the shares of a file are read once and then stay in memory.
    """

    def __init__(
        self, params: PairParams, rows: int, name: bytes, source: BinaryIO | Words, *, in_memory: bool
    ) -> None:
        self.params, self.rows, self.name = params, rows, name
        self._source, self._in_memory = source, in_memory

    def block(self, start: int, stop: int) -> Words:
        """Return the shares (stop - start, d) of some rows, in the order of the training's batches."""
        if self._in_memory:
            return self._all[start:stop]
        chunks = range(start // PRODUCT_ROWS, -(-stop // PRODUCT_ROWS))
        first = start - chunks.start * PRODUCT_ROWS
        return np.concatenate([self._chunk(number) for number in chunks])[first : first + stop - start]

    @cached_property
    def _all(self) -> Words:
        if isinstance(self._source, np.ndarray):
            return self._source
        return np.concatenate([self._chunk(number) for number in range(-(-self.rows // PRODUCT_ROWS))])

    def _chunk(self, number: int) -> Words:
        """Return the shares of one chunk of rows of the file. Raises ConfigError if the file is damaged."""
        assert not isinstance(self._source, np.ndarray), "shares in memory are read by `_all`"
        ring, products = self.params.ring, self.params.products
        count = min(PRODUCT_ROWS, self.rows - number * PRODUCT_ROWS)
        size = ring.size(PRODUCT_ROWS * products) + _DIGEST_BYTES
        data = read_at(self._source.fileno(), ring.size(count * products) + _DIGEST_BYTES, _HEADER.size + number * size)
        if _digest(self.name, number, data[:-_DIGEST_BYTES]) != data[-_DIGEST_BYTES:]:
            raise ConfigError(
                "the file with the shares of pairs is damaged",
                f"remove {PAIR_FILE} from the folder of preprocessing (--ahead); the parties compute it again",
                code="SVFL-FILE-DAMAGED",
            )
        return ring.unpack(data[:-_DIGEST_BYTES], (count, products))


def share_products(
    session: SharesSession,
    params: PairParams,
    components: SmallIntegers,
    folder: Path | None,
    *,
    disk_rows: int = MIN_DISK_ROWS,
) -> PairColumns:
    """Compute the shares of all products together with the other share holder, unless both have stored them.

    Args:
        session: a session of encrypted products and transfers.
        params: the parameters of pairs on which the share holders agree (pair_weights.py).
        components: this party's components (n, r) of the training rows, in the order of the batches.
        folder: the folder of preprocessing, which stores the shares for later runs; None to store nothing.
        disk_rows: from this number of rows on, shares are read from a file in place of memory.

    Returns:
        This party's shares.

    Raises:
        ProtocolError: the other share holder expects other sizes, or computes with other numbers.
    """
    context, products = session.products.context, session.products
    (peer,) = products.other_holders
    rows, digest = len(components), hashlib.sha256(np.ascontiguousarray(components).tobytes()).digest()
    path = None if folder is None else folder / PAIR_FILE
    stored, stored_file = (b"", None) if path is None else _stored_shares(path, params, rows, digest)
    greeting = PairGreeting(rows, params.active, params.partner, params.bits, params.scale, stored)
    products.send(peer, greeting)  # step 1
    answer = products.recv(peer, PairGreeting)  # step 1
    if stored_file is not None and answer.name != stored:
        stored_file.close()
        stored_file = None
    if (answer.rows, answer.active, answer.partner) != (rows, params.active, params.partner):
        raise ProtocolError(
            f"{peer} has pairs of {answer.active} x {answer.partner} components of {answer.rows:,} rows instead of "
            f"{params.active} x {params.partner} of {rows:,}",
            "use the same job and the same aligned rows at both parties",
            code="SVFL-PROTOCOL-SIZE",
            party=peer,
        )
    if (answer.bits, answer.scale) != (params.bits, params.scale):
        raise ProtocolError(
            f"{peer} computes weights of pairs modulo 2^{answer.bits} with the factor {answer.scale:g} instead of "
            f"2^{params.bits} with {params.scale:g}",
            "use the same version of securevfl at both parties",
            code="SVFL-PROTOCOL-VERSION",
            party=peer,
        )
    in_memory = rows < disk_rows
    if stored_file is not None:
        return PairColumns(params, rows, stored, stored_file, in_memory=in_memory)
    name = products.coin(context.active, 0, "name of pairs")[:NAME_BYTES]
    shares = _compute(session, params, components)
    header = _HEADER.pack(_MAGIC, name, digest, rows, params.products, params.bits)
    if path is not None:
        make_private_folder(path.parent)
        with atomic_writer(path) as written:
            _write(written, header, params, shares)
        return PairColumns(params, rows, name, path.open("rb"), in_memory=in_memory)
    if in_memory:
        return PairColumns(params, rows, name, np.concatenate(list(shares)), in_memory=True)
    check_disks({Path(tempfile.gettempdir()): params.ring.size(rows * params.products)})
    file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  it is open as long as the shares are in use
    _write(file, header, params, shares)
    return PairColumns(params, rows, name, file, in_memory=False)


def _compute(session: SharesSession, params: PairParams, components: SmallIntegers) -> Iterator[Words]:
    """Run step 2, and yield this party's shares (m, d) of one chunk of rows after the other."""
    blocks = (components[start : start + PRODUCT_ROWS] for start in range(0, len(components), PRODUCT_ROWS))
    factors = session.small_products(_PURPOSE, params.ring, params.active)
    if isinstance(factors, WordFactors):
        words = (params.ring.of(block.astype(np.int64))[:, None] for block in blocks)
        shares = factors.shares(words, params.partner)
    else:
        shares = factors.shares(blocks)
    for share in shares:
        yield share.reshape(len(share), -1)


def _write(file: BinaryIO, header: bytes, params: PairParams, shares: Iterator[Words]) -> None:
    _, name, *_ = _HEADER.unpack(header)
    file.write(header)
    for number, words in enumerate(shares):
        data = params.ring.pack(words)
        file.write(data + _digest(name, number, data))
    file.flush()


def _digest(name: bytes, number: int, data: bytes) -> bytes:
    """Return the digest of a chunk of rows, which shows that it belongs to the shares of this name."""
    return hashlib.sha256(name + number.to_bytes(8, "little") + data).digest()


def _stored_shares(path: Path, params: PairParams, rows: int, digest: bytes) -> tuple[bytes, BinaryIO | None]:
    """Open a file of shares, and return their name and the file if they are those of the present components.

    Args:
        path: the file.
        params: the parameters of pairs.
        rows: the number of rows.
        digest: digest of this party's present components.

    Returns:
        The name and the open file. Otherwise an empty name and None.
    """
    if not path.exists():
        return b"", None
    file = path.open("rb")
    header = file.read(_HEADER.size)
    if len(header) == _HEADER.size:
        magic, name, *described = _HEADER.unpack(header)
        if magic == _MAGIC and described == [digest, rows, params.products, params.bits]:
            return bytes(name), file
    file.close()
    return b"", None
