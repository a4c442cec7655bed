"""Mutants (deliberate errors) of private alignment."""

from __future__ import annotations

import hashlib
import threading
from typing import Any
from unittest import mock

import numpy as np

from securevfl.crypto import curve
from securevfl.crypto.curve import Blinder
from securevfl.crypto.transfers import base_transfers, ot_extension, vole
from securevfl.protocols.alignment import psi, psi_points, psi_work
from selfcheck.mutants.mutant import Mutant, patched


def _one_scalar(self: Any) -> None:
    self._scalar = b"\x08" + bytes(range(30)) + b"\x40"


def _scalar_of_name(self: Any, scalar: bytes) -> None:
    self._scalar = hashlib.sha256(threading.current_thread().name.encode()).digest()


def _unsorted(points: bytes) -> Any:
    return points, np.arange(len(points) // 32)


def _any_order(sender: str, what: str, data: bytes, size: int, last: bytes) -> bytes:
    return data[-size:]


def _any_points(points: bytes, executor: Any = None) -> int:
    return len(points) // 32


def _straight_to_x(canonical: bytes) -> bytes:
    digest = hashlib.sha512(canonical).digest()
    return (int.from_bytes(digest, "little") % curve._P).to_bytes(32, "little")


def _unblinded(self: Any, points: bytes, executor: Any = None) -> bytes:
    return points


_psi_declares = psi.declares


def _psi_declares_less(passives: Any, **flow: Any) -> Any:
    return [item for item in _psi_declares(passives, **flow) if item.message.__name__ != "TwiceBlinded"]


_take = vole.VoleReceiverPiece.__init__


def _no_noise(self: Any, public: Any, number: int, size: Any, leaves: Any, noise: Any, *arguments: Any) -> None:
    _take(self, public, number, size, leaves, noise, *arguments)
    self._noise[:] = 0


def _any_trees(self: Any, confirmed: bytes) -> None:
    return


def _no_choices() -> Any:
    return bytes(ot_extension.SECRET_BYTES), [False] * ot_extension.ROW_BASES


def _any_point(point: bytes) -> None:
    return


def _unshifted(offer: bytes, choices: list[bool]) -> tuple[bytes, list[bytes]]:
    """Reveal the choice: the scalar is computed from the chosen bit."""
    with mock.patch.object(base_transfers, "_scalar", return_value=(7).to_bytes(32, "little")):
        return _choose(offer, choices)


_choose = base_transfers.receive_keys


def _any_number(work: Any, begin: Any) -> None:
    return


MUTANTS = [
    Mutant(
        "alignment: any number of ids",
        "a party may query more ids than it was granted",
        "granted ids are held to",
        "refusal",
        patched((psi, "check_granted", _any_number)),
    ),
    Mutant(
        "alignment: one scalar for ever",
        "all blinders hold one scalar",
        "blinders are fresh",
        "fresh",
        patched((Blinder, "__init__", _one_scalar)),
    ),
    Mutant(
        "alignment: scalar kept between runs",
        "each party blinds every alignment alike",
        "alignment of two",
        "fresh",
        patched((psi_work.StoredBlinder, "__init__", _scalar_of_name)),
    ),
    Mutant(
        "alignment: points unsorted",
        "points travel in the order of rows",
        "alignment of two",
        "hidden",
        patched((psi_points, "sort_points", _unsorted), (psi_work, "check_ascending", _any_order)),
    ),
    Mutant(
        "alignment: points not blinded",
        "hashed ids travel as they are",
        "alignment of two",
        "hidden",
        patched((Blinder, "blind", _unblinded)),
    ),
    Mutant(
        "alignment: any point is blinded",
        "points off the curve and of small order pass",
        "points are on the curve",
        "refusal",
        patched((curve, "check_points", _any_points)),
    ),
    Mutant(
        "alignment: hash straight to x",
        "a hashed id reveals its side",
        "points are on the curve",
        "hidden",
        patched((curve, "_hash_one", _straight_to_x)),
    ),
    Mutant(
        "alignment: declares less",
        "points blinded twice are not declared",
        "alignment of two",
        "declared",
        patched((psi, "declares", _psi_declares_less)),
    ),
    Mutant(
        "vector OLE: no noise",
        "the store that asks travels as it is",
        "what asks is masked",
        "hidden",
        patched((vole.VoleReceiverPiece, "__init__", _no_noise)),
    ),
    Mutant(
        "vector OLE: any trees",
        "a sender may alter sums and learn the position of the noise from the receiver's reaction",
        "altered trees are refused",
        "refusal",
        patched((vole.VoleReceiverPiece, "check", _any_trees)),
    ),
    Mutant(
        "transfers: no choices",
        "the holder's secret is zero: the evaluator has its function on every key",
        "transfers hide the other key",
        "fresh",
        patched((ot_extension, "fresh_secret", _no_choices)),
    ),
    Mutant(
        "transfers: one scalar for all",
        "the reply reveals each choice",
        "transfers hide the other key",
        "hidden",
        patched((base_transfers, "receive_keys", _unshifted)),
    ),
    Mutant(
        "transfers: any point",
        "points of small order pass as offers and choices",
        "transfers hide the other key",
        "refusal",
        patched((base_transfers, "_check", _any_point)),
    ),
]
