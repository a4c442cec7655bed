"""Mutants (deliberate errors) of training on shares: products, transfers, iterations, stored records and refusals."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

import numpy as np

from securevfl.base.roles import ACTIVE, PARTNER
from securevfl.crypto import share_scheme
from securevfl.crypto.lattice.lattice_shares import BfvParameters, LatticeShareEvaluator
from securevfl.crypto.prg import Prg
from securevfl.crypto.transfers import field_transfers, punctured_seeds
from securevfl.crypto.transfers.field_transfers import TransferSender
from securevfl.crypto.transfers.row_hash import RowHash
from securevfl.families.shares.shares_participant import SharesParticipant
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares import iteration as shares
from securevfl.protocols.shares import opened_weights
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import MaskedResidual
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.opened_weights import WeightQuantizer
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.spent_chunks import SpentChunks
from securevfl.training.checkpoint import Checkpoints
from selfcheck.mutants.lattice_mutants import no_zero
from selfcheck.mutants.mutant import Mutant, Stand, edited, patched

_second, _measure = BfvParameters.second, SharesParticipant.measure
_send_keys, _receive_keys = Products.send_keys, Products.receive_keys
_steps, _uniform = FixedPointEncoding.encode_steps, Products.send_uniform_queries


def _no_zero(self: Any) -> Any:
    return no_zero(self._parameters.bfv)


def _modulo_t(self: Any, prg: Any, shape: Any) -> Any:
    primes, t = [int(p) for p in self._parameters.bfv.primes], 1 << self._parameters.ring.bits
    q = primes[0] * primes[1]
    words = self._parameters.ring.uniform(Prg.fresh("a mask modulo t"), shape)
    scaled = [(2 * q * int(word) + t) // (2 * t) % q for word in words.ravel()]
    return np.array([[x % p for x in scaled] for p in primes], np.uint64).reshape(-1, *shape)


def _given(self: Any, coin: bytes) -> Any:
    return _second(self, bytes(32))


def _one_key(self: Any, number: int, purposes: Any, schemes: Any = ()) -> Any:
    """For every purpose, use the key and the coin (common random bytes) of the first purpose with the same scheme."""
    keys = dict[tuple[bytes, int], Any]()
    chosen = list(schemes) or [self.scheme] * len(purposes)

    def stand(scheme: Any) -> Any:
        def keygen(coin: bytes) -> Any:
            if (coin, id(scheme)) not in keys:
                keys[coin, id(scheme)] = scheme.keygen(coin)
            return keys[coin, id(scheme)]

        return Stand(scheme, keygen=keygen)

    return _send_keys(self, number, [purposes[0]] * len(purposes), [stand(scheme) for scheme in chosen])


def _one_evaluator(self: Any, number: int, purposes: Any, schemes: Any = ()) -> Any:
    return _receive_keys(self, number, [purposes[0]] * len(purposes), schemes)


class _Known(Prg):
    """Keystreams of a key that is the same in every session."""

    @classmethod
    def fresh(cls, label: str) -> Prg:
        return cls(bytes(range(32)), label)


def _handed_out(self: Any, loss: Any, data: Any, rounds: int, *, last: bool) -> Any:
    """Measure as before, and at the end let the active party send its shares of weights to their owners."""
    for name, words in self._state.peer_shares.items() if last and self._active else ():
        self._context.channel.send(name, MaskedResidual(words.tobytes()), "weights")
    if last and not self._active:
        self._context.channel.recv(self._context.active, MaskedResidual, "weights")
    return _measure(self, loss, data, rounds, last=last)


def _by_norm(self: Any, X: Any, rate: float, P: Any = None, *, rows: int | None = None) -> Any:
    return _steps(self, X / np.abs(X).max(), rate, P, rows=rows)


class _Unhashed(RowHash):
    """Uses raw rows of the extension as keys."""

    def __call__(self, x: Any, tweak: Any) -> Any:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tweak.shape)).copy()


class _SameKappa(Prg):
    def __init__(self, key: bytes, label: str) -> None:
        super().__init__(key, label.split(",")[0])


def _bare(party: str) -> Any:
    """`Products.send_uniform_queries` that encrypts zeros at this party, so that its psi hides nothing of residuals."""

    def send(
        self: Any, executor: Any, names: Any, holder: Any, shapes: Any, *, columns: int, uses: int, **layout: Any
    ) -> dict[int, Any]:
        if self.context.me != self.holders[0 if party == ACTIVE else 1]:
            return _uniform(self, executor, names, holder, shapes, columns=columns, uses=uses, **layout)
        psi = {batch: np.zeros(shape, np.uint64) for batch, shape in shapes.items()}
        self.send_queries(executor, names, holder, psi, columns=lambda _: columns, uses=uses)
        return psi

    return send


def _unmarked(self: Any, number: int, place: int) -> None:
    return None


def _by_place(self: Any, ids: Any) -> Any:
    return [hashlib.sha256(b"%d" % number + item).digest()[:16] for number, item in enumerate(ids)]


MUTANTS = [
    Mutant(
        "answers about shares without zero",
        "an answer to a query is the product as it is",
        "shares: answers",
        "fresh",
        patched((LatticeShareEvaluator, "_zero", _no_zero)),
    ),
    Mutant(
        "masks of shares modulo t",
        "products are masked modulo 2^L, and not the noise below",
        "shares: answers",
        "uniform",
        patched((LatticeShareEvaluator, "_uniform", _modulo_t)),
    ),
    Mutant(
        "one polynomial for all keys",
        "the second polynomial of a public key follows no coin",
        "shares: answers",
        "keys",
        patched((BfvParameters, "second", _given)),
    ),
    Mutant(
        "masks of a training used again",
        "psi and gamma come from a key that is the same in every session",
        "shares: what parties know",
        "uniform",
        patched((share_scheme, "Prg", _Known)),
    ),
    Mutant(
        "tables without psi",
        "entries are hidden by pads alone, so the partner opens residuals",
        "shares: what parties know",
        "uniform",
        patched((Products, "send_uniform_queries", _bare(ACTIVE))),
    ),
    Mutant(
        "delta without gamma",
        "the partner sends its share of a residual in the clear",
        "shares: what parties know",
        "uniform",
        patched((Products, "send_uniform_queries", _bare(PARTNER))),
    ),
    *(
        Mutant(
            f"{who}, seen by the simulator",
            "as above",
            "simulator shares",
            "simulator",
            patched((Products, "send_uniform_queries", _bare(role))),
        )
        for who, role in (("tables without psi", ACTIVE), ("delta without gamma", PARTNER))
    ),
    Mutant(
        "weights handed out",
        "the active party sends everyone its share of their weights at the end",
        "job shares",
        "declared",
        patched((SharesParticipant, "measure", _handed_out)),
    ),
    Mutant(
        "kappa of another chunk",
        "parts of all chunks are masked by one keystream",
        "job shares",
        "nonce",
        patched((shares, "Prg", _SameKappa)),
    ),
    Mutant(
        "one key for two purposes",
        "steps and sums are multiplied under one holder's key",
        "job shares",
        "fresh",
        patched(
            (Products, "send_keys", _one_key),
            (Products, "receive_keys", _one_evaluator),
            # this line makes the schemes equal, because two schemes cannot use the same key
            (OfflinePhase, "_scheme_of_sums", lambda self, vectors: self.session.products.scheme),
        ),
    ),
    Mutant(
        "scale of steps from the data",
        "a party's steps are divided by its largest value",
        "shares: numbers",
        "numbers",
        patched((FixedPointEncoding, "encode_steps", _by_norm)),
    ),
    Mutant(
        "keys of transfers unhashed",
        "raw rows of the extension are keys",
        "shares: transfers",
        "choices",
        patched((field_transfers, "RowHash", _Unhashed)),
    ),
    Mutant(
        "trees of seeds unchecked",
        "sums of trees pass that fit no leaves",
        "shares: transfers",
        "choices",
        patched((punctured_seeds, "hmac", Stand(hmac, compare_digest=lambda *_: True))),
    ),
    Mutant(
        "columns of transfers unchecked",
        "columns that carry several choices pass",
        "shares: transfers",
        "choices",
        patched((TransferSender, "_check", lambda *_: None)),
    ),
    Mutant(
        "choices that are no secret",
        "the partner's choices are zero throughout, so places are its share of the index",
        "shares: transfers",
        "choices",
        patched((field_transfers, "os", Stand(os, urandom=bytes))),
    ),
    Mutant(
        "preprocessing without marks of used records",
        "a chunk that was begun is used again after a crash",
        "shares: stored records",
        "kept",
        patched((DiskStore, "_mark_used", _unmarked)),
    ),
    Mutant(
        "preprocessing in copied files",
        "a chunk counts wherever its file was copied from",
        "shares: stored records",
        "kept",
        patched((DiskStore, "_is_original", lambda *_: True)),
    ),
    Mutant(
        "names that are not spent",
        "a chunk of a restored folder is used again",
        "shares: stored records",
        "kept",
        patched((SpentChunks, "spend", lambda *_: None)),
    ),
    Mutant(
        "states of two tries",
        "later states remain when a run resumes from an earlier one",
        "shares: stored records",
        "kept",
        patched((Checkpoints, "remove_after", lambda *_: None)),
    ),
    Mutant(
        "scores without a ledger",
        "rows are scored as often and with whatever columns the peer likes",
        "shares: limits of scores",
        "limits",
        patched((ScoreLedger, "admit", lambda self, question, *_, **__: np.ones(len(question.rows), np.uint8))),
    ),
    Mutant(
        "codes without a ledger",
        "the columns with most weight in a row are disclosed with its score and not counted",
        "shares: limits of scores",
        "limits",
        patched((ScoreLedger, "admit_codes", lambda self, model, ids, *_, **__: np.ones(len(ids), np.bool_))),
    ),
    Mutant(
        "codes outside of the budget",
        "codes of a row are recorded, and do not reduce the bits of its scores",
        "shares: limits of scores",
        "limits",
        patched(
            edited(ScoreLedger, "admit_codes", ("sum(disclosed_bits(tables, row))", "disclosed_bits(tables, row)[1]"))
        ),
    ),
    Mutant(
        "codes counted once a row",
        "codes from other columns of the same row count as a repetition of earlier codes",
        "shares: limits of scores",
        "limits",
        patched(edited(ScoreLedger, "admit_codes", ('f"{model} {content.hex()}" for content', "model for _"))),
    ),
    Mutant(
        "scores of training rows",
        "a ledger forgets which rows a model was trained on",
        "shares: limits of scores",
        "limits",
        patched((ScoreLedger, "_digests", _by_place)),
    ),
    Mutant(
        "weights in full",
        "weights are opened with 27 bits, so powers of two reveal 27 labels",
        "shares: opened weights",
        "weights",
        patched((WeightQuantizer, "of", classmethod(lambda kind, *_: kind(20)))),
    ),
    Mutant(
        "labels in weights not entered",
        "the party with labels records disclosures about its columns, and none about its labels",
        "shares: opened weights",
        "weights",
        patched(
            edited(
                opened_weights, "record_weights", ("        if context.me == context.active:\n", "        if False:\n")
            )
        ),
    ),
    Mutant(
        "weights served unrounded",
        "what holders have of opened weights stays in their shares, and is scored with",
        "shares: opened weights",
        "weights",
        patched(edited(opened_weights, "open_weights", ("_fresh_state(r, np.zeros_like(share))", "r"))),
    ),
]
