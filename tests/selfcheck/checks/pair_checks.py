"""What share holders learn while a model with pairs is trained, and whether both compute the same weights.

Kinds of findings, in addition to those of `transcripts`:

masks       a mask of a gradient that is used twice
views       two views of the weights that differ, because a share was sent without its mask
training    outputs out of range, because shares or weights are wrong
gradients   a product with limbs that is not exact
material    precomputed material that is accepted for other shares of the products
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np

from securevfl.audit.statistics import Battery, add_uniformity_tests
from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.data import datasets
from securevfl.errors import DivergenceError
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.iteration import MaskedGradient
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.shares.small_products import MaskedCorrelations
from securevfl.runtime.observer import Event, Observer
from securevfl.training.simulate import simulate

_ITERATIONS = 4


class _Seen(Observer):
    """The packed words of messages about pairs by kind and receiver."""

    def __init__(self) -> None:
        self.words: dict[tuple[str, str], list[bytes]] = {}

    def __call__(self, event: Event) -> None:
        message = event.message
        if event.direction == "recv" and isinstance(message, MaskedGradient | MaskedCorrelations):
            self.words.setdefault((type(message).__name__, event.me), []).append(message.words)

    def note(self, me: str, fact: object) -> None:
        return


def pairs() -> Outcome:
    """Check messages, masks and both views of the weights of a training with pairs."""
    outcome, seen, parties = Outcome(), _Seen(), datasets.breast_cancer()
    job = Job(
        model=Logistic(pairs=4),
        optimizer=BlockDescent(),
        protocol=Protocol(shares=Shares()),
        batch_size="all",
        epochs=_ITERATIONS,
    )
    lead, partner = parties
    ring, run = ShareRing(40), None
    try:
        run = simulate(job, parties, observe=seen, workers=1)
    except DivergenceError:
        outcome.add("training", "all", "the outputs of the model are out of range")
    for (kind, receiver), packed in seen.words.items():
        words = np.concatenate([ring.unpack(data, (len(data) // ring.octets,)) for data in packed])
        battery = Battery()
        add_uniformity_tests(battery, kind, words * 2.0**-ring.bits, words.astype(np.uint8))
        outcome.statistics("uniform", receiver, battery)
    if run is None:
        return outcome
    states = {party.name: run.parts[party.name].state["pairs"] for party in parties}
    for name, state in states.items():
        if len({mask.tobytes() for mask in state["masks"]}) < _ITERATIONS:
            outcome.add("masks", name, "two gradients have the same mask")
    mine, theirs = states[lead.name], states[partner.name]
    if (ring.reduce(mine["opened"] + theirs["masks"]) != ring.reduce(theirs["opened"] + mine["masks"])).any():
        outcome.add("views", "all", "the two views of the weights of pairs differ")
    return outcome


def limbs() -> Outcome:
    """Check that products with limbs of words are exact."""
    outcome, ring = Outcome(), ShareRing(40)
    params, prg = PairParams(1, 1, ring.bits, 0, 1.0, 1), Prg.fresh("words of a check")
    words, V = ring.uniform(prg, (500, 3)), ring.uniform(prg, (500, 2))
    stacked = np.concatenate(params.split(words)).astype(np.int64).view(np.uint64)
    if (ring.reduce(stacked.T @ params.multiples(V)) != ring.reduce(words.T @ V)).any():
        outcome.add("gradients", "all", "a product with limbs differs from the product")
    return outcome


def _base(name: bytes) -> bytes:
    """Return the digest of the state of a share holder whose shares of the products have this name."""
    columns = SimpleNamespace(name=name, params=PairParams(1, 1, 40, 0, 1.0, 1))
    phase = SimpleNamespace(columns=columns, masks=np.zeros((0, 1), np.uint64))
    params = SimpleNamespace(block=None, encoding=None, pairs=columns.params)
    holder = SimpleNamespace(_iteration=0, _r={}, _params=params, pairs=phase)
    return OfflinePhase.state_digest(cast(OfflinePhase, holder))


def bound_material() -> Outcome:
    """Check that precomputed material is accepted only with the shares of the products that it was computed from."""
    outcome = Outcome()
    if _base(b"one name") == _base(b"another name"):
        outcome.add("material", "all", "material of other shares of the products is accepted")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "shares: pairs": pairs,
    "shares: limbs of pairs": limbs,
    "shares: material of pairs": bound_material,
}
