"""Every error that securevfl raises on purpose.

    SecureVFLError
    |-- ConfigError         a job or an option that cannot be used
    |   |-- KeySizeError    a key or ring below 128-bit practice
    |   |-- PartiesError    one party, two with labels, none with labels, two of one name
    |   |-- ConsentError    a sheet that its party has not agreed to
    |   `-- LeakageError    a choice that protects nothing, or a leak the job has not accepted
    |-- DataError           what a party brings
    |   |-- TableError      NaN, infinities, strings, constant or empty columns, row counts
    |   |-- LabelError      labels the loss cannot use
    |   |   `-- ClassError  a job that names a class which the labels do not have
    |   `-- IdError         duplicate, missing or unmatched ids
    |-- ProtocolError       the peer broke the protocol
    |   |-- FrameError      a truncated, altered, replayed or oversized frame
    |   `-- LimitError      more was asked for than had been agreed
    |-- TransportError      a peer is away, refused, too late, or has stopped
    |   |-- PeerLost        a peer that was there is gone, or has started anew; it may come back
    |   `-- PeerStopped     a peer that says it has stopped, and why, in one of a few words
    |-- StorageError        a file that cannot be written or read: no room, no permission
    |-- DivergenceError     a training that moves away from any model
    `-- CryptoError         a key, ciphertext or plaintext that cannot be used
        |-- RangeError      a value outside the agreed fixed-point range
        |-- KeyMismatch     a ciphertext or key that does not belong together
        |-- OpeningMismatch opened values that are not those of the product
        `-- ShapeMismatch   a product of another shape than was agreed

    DataNotice              a warning: something of a table is left out

A message says who, what was expected, what came and what to do. It never shows a value of anyone's data. Other parties
do not read it: they are told one of a few codes (`STOPPED`), the same for whatever depends on this party's data, as the
reason for which a job is refused would tell of labels and columns.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Literal, get_args

Code = Literal["refused", "consent", "stopped", "storage", "away", "protocol", "diverged", "failed"]

# What other parties read when one of them stops, by its code; nothing else of the error reaches them.
STOPPED: dict[Code, str] = {
    "refused": "it cannot or may not take part as things stand; its own log says why",
    "consent": "it has not agreed to its consent sheet; run the same command again at every party once it has",
    "stopped": "its operator has stopped it; run the same command again at every party",
    "storage": "a file of its own could not be written or read; start again once that is mended",
    "away": "a party is away from it, or has stopped; run the same command again at every party",
    "protocol": "what came to it is not what the protocol has there; do all run the same job and version?",
    "diverged": "the training moves away from any model; lower lr or scale columns",
    "failed": "it has failed; its own log says more",
}
assert tuple(STOPPED) == get_args(Code)

# Why a party stops may follow from its table or from its ledger, under these codes; under others it follows from its
# people, its disk or its peers.
OF_DATA: frozenset[Code] = frozenset({"refused", "protocol", "diverged", "failed"})


class SecureVFLError(Exception):
    """The base class of all errors that securevfl raises on purpose. `code`: what other parties are told of it."""

    code: ClassVar[Code] = "failed"


class ConfigError(SecureVFLError):
    """A job or an option that cannot be used."""

    code: ClassVar[Code] = "refused"


class KeySizeError(ConfigError):
    """A key or ring below 128-bit practice."""


class PartiesError(ConfigError):
    """The parties of a job do not fit together."""


class ConsentError(ConfigError):
    """A consent sheet that its party has not agreed to."""

    code = "consent"


class LeakageError(ConfigError):
    """The job would reveal more than it has accepted."""


class DataError(SecureVFLError):
    """What a party brings cannot be used."""

    code = "refused"


class TableError(DataError):
    """A column or a row count that cannot be used."""


class LabelError(DataError):
    """The error of labels that the loss cannot use."""


class ClassError(LabelError):
    """The job names a class that the labels do not have."""


class IdError(DataError):
    """The error of ids that are duplicate, missing or unmatched."""


class ProtocolError(SecureVFLError):
    """The error of a peer that broke the protocol."""

    code = "protocol"


class FrameError(ProtocolError):
    """A truncated, altered, replayed or oversized frame."""


class LimitError(ProtocolError):
    """More was asked for than had been agreed."""


class TransportError(SecureVFLError):
    """A peer is away, refused, too late, or has stopped. `away`: its name, where it is known, which others may read."""

    code = "away"

    def __init__(self, message: str = "", *, away: str = "") -> None:
        super().__init__(message)
        self.away = away


class PeerLost(TransportError):
    """A peer that was there is gone, or has started anew; it may come back."""


class PeerStopped(TransportError):
    """A peer that says it has stopped, or of which another peer says so: `party`, and by which code, `stopped`."""

    def __init__(self, party: str, stopped: Code, more: str = "") -> None:
        super().__init__(f"{party} has stopped: {STOPPED[stopped]}{more}")
        self.party = party
        self.stopped = stopped


class StorageError(SecureVFLError):
    """A file that cannot be written or read."""

    code = "storage"

    def __init__(self, path: object, cause: OSError) -> None:
        reason = cause.strerror or type(cause).__name__
        remedy = "make room" if cause.errno in (errno.ENOSPC, errno.EDQUOT) else "name a place that can be used"
        super().__init__(f"{path}: a file was expected to be written or read there ({reason}); {remedy}")


def code_of(error: BaseException) -> Code:
    """Return what other parties are told of an error, of this package or not."""
    if isinstance(error, SecureVFLError):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    return "storage" if isinstance(error, OSError) else "failed"


class DataNotice(UserWarning):
    """Something of a table is left out of the training; it goes on."""


class DivergenceError(SecureVFLError):
    """The training moves away from any model; nothing of it is kept."""

    code = "diverged"


class CryptoError(SecureVFLError):
    """A key, ciphertext or plaintext that cannot be used."""

    code: ClassVar[Code] = "protocol"


class RangeError(CryptoError):
    """A value outside the agreed fixed-point range."""

    code = "refused"


class KeyMismatch(CryptoError):
    """A ciphertext or key that does not belong together."""


class OpeningMismatch(CryptoError):
    """Opened values that are not those of the product: its checks do not fit them."""


class ShapeMismatch(CryptoError):
    """A product of another shape than was agreed."""
