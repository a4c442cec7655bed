"""Checks of training on shares: what parties know about residuals, request, answer, store and refuse.

Kinds of findings, in addition to those of `transcripts`:

keys        a public polynomial that a party could choose, or that two keys share
choices     a transfer that opens more than the chosen key, or accepts columns with several choices
kept        preprocessing that could be used twice, or states that do not match
limits      a score that a ledger should have refused
numbers     a scale that depends on the data
weights     opened weights with more bits than needed, or that a party has not recorded
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from builders import transfer_pair
from numpy.typing import NDArray

from securevfl.audit.statistics import Battery, add_uniformity_tests
from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.kernel.share_protocol import REPLY_HEADER
from securevfl.crypto.lattice.lattice_shares import BfvParameters, LatticeShares
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.share_scheme import common_coin
from securevfl.crypto.transfers import base_transfers, field_transfers, punctured_seeds
from securevfl.crypto.transfers.bit_matrices import transpose_bits
from securevfl.crypto.transfers.ot_extension import CHECK_BYTES
from securevfl.crypto.transfers.punctured_seeds import BLOCKS
from securevfl.data import datasets
from securevfl.errors import CryptoError, DivergenceError, LeakageError, ProtocolError
from securevfl.families.state import State
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedSGD
from securevfl.protocols.observations import SharedResidual
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ScoreLedger
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import LookupRequest
from securevfl.protocols.shares.opened_weights import OpenedWeights
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.shares.spent_chunks import SpentChunks
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.observer import Event, Observer
from securevfl.training.checkpoint import Checkpoint, Checkpoints
from securevfl.training.simulate import simulate

_BITS, _ROWS = 6, 60


class _Seen(Observer):
    """What parties know about residuals, as integers, and the rotations of tables that the active party received."""

    def __init__(self) -> None:
        self.words: dict[str, list[Any]] = {}
        self.turns: list[LookupRequest] = []
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if event.direction == "recv" and isinstance(event.message, LookupRequest):
            self.turns.append(event.message)

    def note(self, me: str, fact: object) -> None:
        if isinstance(fact, SharedResidual):
            with self._lock:
                self.words.setdefault(me, []).append(fact.words.ravel())


def _run() -> tuple[_Seen, ShareRing]:
    """Run five iterations on 180 rows of three parties, each with its preprocessing."""
    job = Job(
        model=Logistic(),
        optimizer=FedSGD(lr=0.3),
        protocol=Protocol(shares=Shares(chunk=1)),
        batch_size="all",
        epochs=5,
    )
    seen = _Seen()
    parties = [party.take(np.arange(180, dtype=np.intp)) for party in datasets.breast_cancer(parties=3)]
    run = simulate(job, parties, workers=1, observe=seen)
    return seen, ShareRing(FixedPointEncoding(run.active.state["sizes"]["rows"], 0.3).bits)


def seen() -> Outcome:
    """Check that each party's words about residuals are uniform, and so are the differences between two runs."""
    outcome, battery = Outcome(), Battery()
    runs = [_run() for _ in range(2)]
    for name, words in runs[0][0].words.items():
        _uniform(battery, f"what {name} knows of residuals", np.concatenate(words), runs[0][1])
    deltas = [[turn.delta for turn in seen.turns if turn.delta] for seen, _ in runs]
    ring = runs[0][1]
    one, other = (ring.unpack(b"".join(item), (180 * len(item),)) for item in (deltas[0][:1], deltas[1][:1]))
    _uniform(battery, "delta of two sessions", ring.signed(ring.reduce(one - other)).astype(np.float64), ring)
    outcome.statistics("uniform", "all", battery)
    return outcome


def _uniform(battery: Battery, what: str, words: Any, ring: ShareRing) -> None:
    residues = words % 2.0**ring.bits
    add_uniformity_tests(battery, what, residues / 2.0**ring.bits, (residues % 256).astype(np.uint8))


def answered() -> Outcome:
    """Check that answers to one query share no polynomial, and that masks are uniform also below a unit of a share."""
    outcome, scheme = Outcome(), LatticeShares(48)
    coins = [common_coin(os.urandom(32), os.urandom(32), 0, "audit") for _ in range(2)]
    holder = scheme.keygen(coins[0])
    evaluator: Any = scheme.evaluator(holder.public, coins[0])
    V = ShareRing(48).uniform(Prg.fresh("audit"), (40, 1))
    prepared, sealed = evaluator.prepare(np.eye(40, 8, dtype=np.int64)), holder.encrypt(V, columns=8)
    size = REPLY_HEADER.size
    one, other = (evaluator.product(prepared, sealed)[0][size : size + 4096] for _ in range(2))
    if one == other:
        outcome.add("fresh", "holder", "two answers to one query have a polynomial in common, so it can be divided by")
    parameters = BfvParameters(48)
    primes = [int(p) for p in parameters.bfv.primes]
    q = primes[0] * primes[1]
    masks = evaluator._uniform(Prg.fresh("audit"), (2000,))
    inverse = pow(primes[0], -1, primes[1])
    integers = [int(a) + primes[0] * ((int(b) - int(a)) * inverse % primes[1]) for a, b in masks.T]
    below = np.array([x * 2**48 % q / q for x in integers])
    battery = Battery()
    add_uniformity_tests(
        battery, "masks of answers below a unit", below, (below * 2**16).astype(np.int64).astype(np.uint8)
    )
    outcome.statistics("uniform", "holder", battery)
    seconds = [parameters.second(coin) for coin in coins]
    if (seconds[0] == seconds[1]).all() or not seconds[0].any():
        outcome.add("keys", "evaluator", "public keys have polynomials that follow no coin")
    return outcome


def transferred() -> Outcome:
    """Check that a receiver opens the pad that it has chosen at random and no other, and that a deviating receiver,
    whose choices or trees of seeds differ by block, is stopped."""
    outcome = Outcome()
    related = _related_keys()
    if related:
        outcome.add("choices", "partner", "keys of all rows differ by one value, so one known key opens all others")
    _, many = transfer_pair(_BITS)[0].extend(6000)
    counts = np.bincount(many.choices, minlength=2**_BITS)
    expected = 6000 / 2**_BITS
    if ((counts - expected) ** 2 / expected).sum() > 250:  # with 63 degrees of freedom
        outcome.add("choices", "active", "choices are not random, so places show sums")
    return outcome.merge(_odd_columns()).merge(_odd_trees())


def _related_keys() -> bool:
    """Return whether the keys of all rows that belong to one difference of a symbol differ from V by the same value."""
    receiver, sender = transfer_pair(3)
    rows: list[Words] = []

    def noting(columns: NDArray[np.uint8]) -> Words:
        rows.append(transpose_bits(columns))
        return rows[-1]

    with mock.patch.object(field_transfers, "transpose_bits", noting):
        message, chosen = receiver.extend(_ROWS)
    pads = sender.extend(_ROWS, message).pads()
    other = pads[chosen.choices ^ 1, np.arange(_ROWS)]
    return bool((np.ptp(other ^ rows[0][:_ROWS, 0]) == 0) and (other[0] != other[1]))


def _odd_columns() -> Outcome:
    outcome = Outcome()
    receiver, sender = transfer_pair(_BITS)
    message = bytearray(receiver.extend(_ROWS)[0])
    octets = (len(message) - CHECK_BYTES * (field_transfers.COLUMNS + 1)) // BLOCKS
    for block in range(BLOCKS):
        message[block * octets] ^= 1 << block % 8
    with contextlib.suppress(CryptoError):
        sender.extend(_ROWS, bytes(message))
        outcome.add("choices", "active", "accepts blocks with several choices, which disclose bits of its secret")
    return outcome


def _odd_trees() -> Outcome:
    """Check the alteration of both sums of one level of a tree by a partner, which affects every secret."""
    outcome = Outcome()
    secret, choices = punctured_seeds.fresh_secret()
    base, coin = base_transfers.BaseSender(), os.urandom(32)
    points, keys = base_transfers.receive_keys(base.offer, choices)
    sums = bytearray(punctured_seeds.grow(base.pairs(points), coin)[0])
    sums[0] ^= 1
    sums[32] ^= 1
    with contextlib.suppress(CryptoError):
        punctured_seeds.puncture(secret, keys, coin, bytes(sums))
        outcome.add("choices", "active", "accepts wrong trees, so a later failure discloses bits of its secret")
    return outcome


def kept() -> Outcome:
    """Check that preprocessing on disk is single-use, even after a crash, and that states of attempts do not mix."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        store = DiskStore(Path(folder) / "ahead")
        store.put(0, bytes(NAME_BYTES), 0, [b"one", b"two"])
        store.put(1, bytes(NAME_BYTES), 2, [b"one", b"two"])
        store.take(0, 0)
        shutil.copytree(Path(folder) / "ahead", Path(folder) / "backup")
        store.close()
        if 0 in DiskStore(Path(folder) / "ahead").chunk_numbers:
            outcome.add("kept", "all", "a chunk that was begun is there again after a crash, masks and all")
        if 1 in DiskStore(Path(folder) / "backup").chunk_numbers:
            outcome.add("kept", "all", "a chunk that was copied serves a second time")
        names = SpentChunks(Path(folder) / "names")
        names.spend(bytes(NAME_BYTES))
        if not SpentChunks(Path(folder) / "names").contains(bytes(NAME_BYTES)):
            outcome.add("kept", "all", "a used chunk is not known by its name")
        names.spend(bytes([1] * NAME_BYTES))
        with contextlib.suppress(ProtocolError):
            names.spend(bytes(NAME_BYTES))
            outcome.add("kept", "all", "a chunk of a name that is spent is begun again")
        states, key = Checkpoints(Path(folder) / "states", "shop"), bytes(32)
        for number in (2, 4, 6):
            states.save(key, Checkpoint(number, "run", [], {}, State()))
        states.remove_after(key, 4)
        if states.rounds(key) != (2, 4):
            outcome.add("kept", "all", "states of an abandoned attempt remain next to those of the next one")
    return outcome


def limited() -> Outcome:
    """Check that a ledger refuses scores that disclose weights, columns or residuals."""
    outcome = Outcome()
    rows = [b"row %d" % number for number in range(40)]
    same = bytes(COMMITMENT_BYTES)

    def refuses(what: str, ask: Callable[[ScoreLedger], object]) -> None:
        ledger = ScoreLedger(None)
        for model in (b"one", b"two"):
            ledger.record_model(model, 20, rows[:10])
        with contextlib.suppress(LeakageError):
            if np.all(np.asarray(ask(ledger))):
                outcome.add("limits", "partner", what)

    def ask(
        ledger: ScoreLedger, model: bytes, ids: Sequence[bytes], commitments: bytes = b"", bits: int = 0
    ) -> NDArray[np.bool_]:
        question = ledger.query(model, "bank", ids, commitments or same * len(ids))
        X = np.arange(40.0 * len(ids)).reshape(len(ids), 40) + 0.5
        states = ledger.admit(question, X, bits=bits, max_bits=13.0)
        ledger.store(question, [b"part"] * len(ids))
        return np.asarray(states == ROW_NEW)

    def twice(ledger: ScoreLedger) -> object:
        return [ask(ledger, b"one", ids).all() for ids in (rows[10:12], rows[11:13])]

    def changed(ledger: ScoreLedger) -> object:
        ask(ledger, b"one", rows[10:12])
        return ask(ledger, b"two", rows[10:12], same + os.urandom(COMMITMENT_BYTES))

    def renamed(ledger: ScoreLedger) -> object:
        table = np.arange(1600.0).reshape(40, 40)
        ledger.record_model(b"one", 20, rows[:20], table[:20])
        ids = [b"0" + row for row in rows[:20]]
        return ledger.admit(ledger.query(b"one", "bank", ids, same * 20), table[:20])

    def measured(ledger: ScoreLedger) -> object:
        for peer in ("bank", "telco"):
            ledger.record_evaluation(peer, rows)
        return True

    def fine(ledger: ScoreLedger) -> object:
        return [ask(ledger, model, rows[10:12], bits=7).all() for model in (b"one", b"two")]

    def coded(ledger: ScoreLedger) -> object:
        ask(ledger, b"one", rows[10:12], bits=7)
        return ledger.admit_codes("run", rows[10:12], np.zeros((2, 40)), bits=6.5, max_bits=13.0)

    def coded_anew(ledger: ScoreLedger) -> object:
        return [
            ledger.admit_codes("run", rows[10:12], np.full((2, 40), value), bits=6.6, max_bits=13.0).all()
            for value in (0.0, 1.0)
        ]

    refuses("scores a row twice by one model", twice)
    refuses("scores a row with other columns of the requesting party", changed)
    refuses("scores rows of the training", lambda ledger: ask(ledger, b"one", rows[9:11]))
    refuses("scores rows of the training under other ids", renamed)
    refuses("scores a model that was hardly trained", lambda ledger: ask(ledger, b"new", rows[20:]))
    refuses("scores rows under models whose bits are too many together", fine)
    refuses("discloses codes of rows whose scores leave no bits for them", coded)
    refuses("discloses codes of the same rows again after their columns have changed", coded_anew)
    refuses("measures few rows again and again", measured)
    return outcome


class _Weighed(Observer):
    """What parties record about opened weights, and the bits of the messages with these weights."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, int]] = []  # owner, kind, bits
        self.bits: list[int] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event.message, OpenedWeights) and event.direction == "send":
            self.bits.append(event.message.bits)

    def note(self, me: str, fact: object) -> None:
        if isinstance(fact, DisclosureRecord) and fact.group == "weights":
            self.entries.append((me, fact.kind, fact.numbers * fact.bits))


def weighed() -> Outcome:
    """Check that opened weights have no more bits than needed, and that every party concerned records them."""
    outcome = Outcome()
    parties = [party.take(np.arange(_ROWS)) for party in datasets.breast_cancer(parties=3)]
    shares = Protocol(shares=Shares(chunk=1, open_weights=("shop",)))
    job = Job(
        model=Logistic(),
        optimizer=FedSGD(lr=0.3),
        protocol=shares,
        epochs=1,
        batch_size="all",
        accepts=("small_metrics", "opened_weights"),
    )
    seen = _Weighed()
    other = "the served model is not the one that was opened"
    try:
        run = simulate(job, parties, observe=seen)
    except DivergenceError:  # weights are measured after they were opened
        outcome.add("weights", "shop", other)
        return outcome
    columns, most = len(parties[1].columns), 7 + int(np.ceil(np.log2(10 * np.sqrt(_ROWS))))
    max_bits = columns * most
    if any(bits > 8 * -(-most // 8) * columns for bits in seen.bits):
        outcome.add("weights", "shop", "weights are opened in more bits than sampling leaves them")
    expected = {(name, "columns") for name in ("bank", "telco")} | {("bank", "labels")}
    if {(name, kind) for name, kind, bits in seen.entries if 0 < bits <= max_bits} != expected:
        outcome.add("weights", "all", "a party whose secrets are in opened weights has not entered their bits")
    other_shares = [
        run.parts[name].state["others"]["shop"] for name in ("bank", "telco") if run.parts[name].state["others"]
    ]
    if any(np.any(share) for share in other_shares):
        outcome.add("weights", "shop", other)
    return outcome


def scaled() -> Outcome:
    """Check that columns and steps have the agreed scales, whatever the columns are."""
    outcome, numbers = Outcome(), FixedPointEncoding(64, 0.5)
    X = np.round(np.random.default_rng(0).normal(size=(64, 5)) * 64) / 64
    for what, encode in (("columns", numbers.encode_columns), ("steps", lambda X: numbers.encode_steps(X, 0.5))):
        if np.abs(encode(2 * X) - 2 * encode(X)).max() > 1:
            outcome.add(
                "numbers", "all", f"the scale of {what} depends on the data and so reveals something about them"
            )
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "shares: what parties know": seen,
    "shares: answers": answered,
    "shares: transfers": transferred,
    "shares: stored records": kept,
    "shares: limits of scores": limited,
    "shares: numbers": scaled,
    "shares: opened weights": weighed,
}
