"""Mutants (deliberate errors) of the handshake, the frames, the leak checks, the consent sheet and secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from securevfl.consent import consent_sheet, leak_check, ledger_session
from securevfl.crypto import prg, secret
from securevfl.crypto.paillier.paillier_keys import SecretKey
from securevfl.crypto.prg import Prg
from securevfl.families import run_shape
from securevfl.protocols import handshake
from securevfl.protocols.sums.mask_keys import SumPublicKey
from securevfl.runtime import codec, inbox
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import decode_message
from securevfl.runtime.inbox import Inbox
from securevfl.training import run_setup
from selfcheck.mutants.mutant import Mutant, patched


@contextmanager
def _meeting_with(**forged: Any) -> Iterator[None]:
    """Make every received RunHello appear to agree."""
    recv = Channel.recv

    def accept(self: Any, sender: str, kind: Any, subchannel: str = "", **keys: Any) -> Any:
        message = recv(self, sender, kind, subchannel, **keys)
        if isinstance(message, handshake.RunHello):
            values = {name: getattr(message, name) for name in message.__struct_fields__}
            return handshake.RunHello(**(values | {name: value(self) for name, value in forged.items()}))
        return message

    with mock.patch.object(Channel, "recv", accept):
        yield


@contextmanager
def _digest_ignored() -> Iterator[None]:
    from securevfl.job import Job

    with mock.patch.object(Job, "digest", property(lambda self: bytes(32))):
        yield


_decode = codec.decode_frame


def _any_session(data: Any) -> Any:
    return _with(_decode(data), session=bytes(16))


def _any_sender(data: Any) -> Any:
    return _with(_decode(data), sender="shop")


def _any_receiver(data: Any) -> Any:
    return _with(_decode(data), receiver="bank")


def _with(frame: Any, **changes: Any) -> Any:
    return type(frame)(**({name: getattr(frame, name) for name in frame.__struct_fields__} | changes))


class _AnyNumber(dict[Any, Any]):
    """A number that equals that of any next frame."""

    def __getitem__(self, place: Any) -> Any:
        return _Equal()

    def __setitem__(self, place: Any, value: Any) -> None:
        return


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: int) -> _Equal:
        return self


_init_inbox = Inbox.__init__


def _careless_inbox(self: Any, *args: Any, **keys: Any) -> None:
    _init_inbox(self, *args, **keys)
    self._next = _AnyNumber()


def _any_kind(self: Any, sender: str, kind: Any, subchannel: str = "", *, timeout: float | None = None) -> Any:
    arrival = self._inbox.take((sender,), subchannel, self.timeout)
    kinds = [kind, SumPublicKey]
    return decode_message(next(k for k in kinds if k.__name__ == arrival.frame.kind), arrival.frame.payload)


_leaks = leak_check.leaks


def _without(name: str) -> Any:
    def fewer(*args: Any, **keys: Any) -> Any:
        return [leak for leak in _leaks(*args, **keys) if leak.name != name]

    return fewer


def _no_check(*args: Any, **keys: Any) -> None:
    return


_role = consent_sheet._role


def _hides(declared: Any, role: Any) -> list[tuple[str, str]]:
    return [(word, text) for word, text in _role(declared, role) if "BlindedProduct" not in text]


def _unkeyed(key: bytes, data: bytes, digest: Any) -> bytes:
    return hashlib.sha256(data).digest()


class _Hmac:
    digest = staticmethod(_unkeyed)

    @staticmethod
    def compare_digest(a: bytes, b: bytes) -> bool:
        return a == b


def _key_speaks(self: Any) -> str:
    return f"<SecretKey p={self._p}>"


def _pickles(self: Any, protocol: Any) -> Any:
    return object.__reduce__, ()


def _any_number(self: Any, number: int | None) -> int:
    return number or 0


def _one_label(key: bytes, *context: Any) -> bytes:
    return key


MUTANTS = [
    Mutant(
        "session: job digest ignored", "every job has one digest", "another job is refused", "refusal", _digest_ignored
    ),
    Mutant(
        "session: row order ignored",
        "every RunHello reads as if rows were in order",
        "another row order is refused",
        "refusal",
        lambda: _meeting_with(order=lambda self: b""),
    ),
    Mutant(
        "session: row order without a key",
        "the digest of ids is the same in every session",
        "row order is keyed",
        "fresh",
        patched((run_setup, "hmac", _Hmac)),
    ),
    Mutant(
        "frames: session not checked",
        "frames of another run are taken",
        "frames are checked",
        "refusal",
        patched((inbox, "decode_frame", _any_session)),
    ),
    Mutant(
        "frames: number not checked",
        "frames may be replayed or lost",
        "frames are checked",
        "refusal",
        patched((Inbox, "__init__", _careless_inbox)),
    ),
    Mutant(
        "frames: sender not checked",
        "a frame may speak in another's name",
        "frames are checked",
        "refusal",
        patched((inbox, "decode_frame", _any_sender)),
    ),
    Mutant(
        "frames: receiver not checked",
        "a frame for another party is taken",
        "frames are checked",
        "refusal",
        patched((inbox, "decode_frame", _any_receiver)),
    ),
    Mutant(
        "frames: type not checked",
        "any message will do",
        "message types are checked",
        "refusal",
        patched((Channel, "recv", _any_kind)),
    ),
    Mutant(
        "leak checks: all off",
        "jobs run whatever they leak",
        "leak check: rank",
        "refusal",
        patched((ledger_session, "check_leaks", _no_check)),
    ),
    Mutant(
        "leak checks: rank off",
        "p >= n c is not called a leak",
        "leak check: rank",
        "refusal",
        patched((leak_check, "leaks", _without("rank"))),
    ),
    Mutant(
        "leak checks: reshuffle allowed",
        "new batches every epoch are not called a leak",
        "leak check: reshuffle",
        "refusal",
        patched((leak_check, "leaks", _without("fresh_equations"))),
    ),
    Mutant(
        "leak checks: single passive allowed",
        "a hiding sum of one part is not called a leak",
        "leak check: single passive",
        "refusal",
        patched((leak_check, "leaks", _without("single_passive"))),
    ),
    Mutant(
        "leak checks: columns allowed",
        "exchanges that span columns are not called a leak",
        "leak check: columns",
        "refusal",
        patched((leak_check, "leaks", _without("columns"))),
    ),
    Mutant(
        "leak checks: own table not looked at",
        "columns of 0/1 count as columns of reals",
        "leak check: columns",
        "refusal",
        patched((run_shape, "numbers_for_recovery", lambda X: X.shape[1] / 2)),
    ),
    Mutant(
        "leak checks: sequential allowed",
        "two sums that differ by one part are not called a leak",
        "leak check: sequential",
        "refusal",
        patched((leak_check, "leaks", _without("sequential"))),
    ),
    Mutant(
        "explain: hides a message",
        "the sheet leaves the blinded product out",
        "consent sheet is complete",
        "declared",
        patched((consent_sheet, "_role", _hides)),
    ),
    Mutant(
        "secrets: a key that speaks",
        "the repr of a Paillier key shows p",
        "secrets are silent",
        "silent",
        patched((SecretKey, "__repr__", _key_speaks)),
    ),
    Mutant(
        "secrets: pickles allowed",
        "secret objects can be pickled and copied",
        "secrets are silent",
        "silent",
        patched((secret.Secret, "__reduce_ex__", _pickles)),
    ),
    Mutant(
        "keystreams: numbers serve twice",
        "a stream may be read again",
        "streams are single-use",
        "fresh",
        patched((Prg, "_take", _any_number)),
    ),
    Mutant(
        "keys: purposes share a stream",
        "a key derived for one purpose is the key of all",
        "keys differ",
        "keys",
        patched((prg, "derive_key", _one_label)),
    ),
]
