"""What parties of a training learn while table entries are lifted from k bits to L bits.

Kinds of findings, in addition to those of `transcripts`:

choices     a bit of the lift that shows the partner's index or entry to the active party
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from securevfl.audit.statistics import Battery, add_uniformity_tests
from securevfl.audit.transcript_checks import Outcome
from securevfl.data import datasets
from securevfl.errors import DivergenceError
from securevfl.families.shares import shares_plan
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedSGD
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.carry_lift import CarryLift
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.opened_loss import EVALUATION_LIFT
from securevfl.protocols.shares.shares_options import Shares
from securevfl.training.simulate import simulate


class _Lifts:
    """The values of all lifts (conversions of table entries to L bits) of a training, by name, in the order of rows."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self.high_bits = 0

    def __getitem__(self, name: str) -> Any:
        return np.concatenate(self._values[name], axis=-1)

    def add(self, **values: Any) -> None:
        with self._lock:
            for name, value in values.items():
                self._values.setdefault(name, []).append(value)


def _run() -> _Lifts:
    """Run twenty iterations on all rows of two parties, so that about 67 rows show the choice of a wrong lift."""
    lifts = _Lifts()
    request, answer, finish, take = CarryLift.request, CarryLift.answer, CarryLift.finish, OfflinePhase.take

    def requested(self: CarryLift, b: Any, c: Any) -> Any:
        if self is not EVALUATION_LIFT:
            lifts.add(b=b, c=c)
        return request(self, b, c)

    def answered(self: CarryLift, mask: Any, e: Any, pads: Any) -> Any:
        if self is not EVALUATION_LIFT:
            lifts.add(a=mask.low, e=e)
        return answer(self, mask, e, pads)

    def finished(self: CarryLift, b: Any, c: Any, pad: Any, words: Any) -> Any:
        if self is EVALUATION_LIFT:
            return finish(self, b, c, pad, words)
        rows, lifts.high_bits = np.arange(len(c)), self.high_ring.bits
        reduce = self.high_ring.reduce
        lifts.add(opened=reduce(words[c, rows] + pad), other=words[1 - c, rows], apart=reduce(words[0] - words[1]))
        return finish(self, b, c, pad, words)

    def taken(self: OfflinePhase, *where: int) -> Any:
        block = take(self, *where)
        if len(block.transfer) == 2:  # the transfer of the partner
            lifts.add(chi=np.frombuffer(block.transfer[0], np.uint8))
        return block

    job = Job(
        model=Logistic(),
        optimizer=FedSGD(lr=0.3),
        protocol=Protocol(shares=Shares(chunk=5)),
        batch_size="all",
        epochs=20,
    )
    with (
        mock.patch.object(shares_plan, "MIN_LIFTED_ROWS", 1),
        mock.patch.object(CarryLift, "request", requested),
        mock.patch.object(CarryLift, "answer", answered),
        mock.patch.object(CarryLift, "finish", finished),
        mock.patch.object(OfflinePhase, "take", taken),
        contextlib.suppress(DivergenceError),  # a mutant may not train a model; its messages are tested anyway
    ):
        simulate(job, datasets.breast_cancer(), workers=1)
    return lifts


def lifted() -> Outcome:
    """Check that each party receives uniform values, and that the bits of the lift show neither index nor entry."""
    outcome, received, opened = Outcome(), Battery(), Battery()
    lifts = _run()
    a, e = lifts["a"], lifts["e"]
    received.add("bits e", float(stats.binomtest(int(e.sum()), len(e)).pvalue))
    outcome.statistics("uniform", "active", received)
    decided = (a == 0) | (a == 128)  # in these rows a alone determines the top bit of b, so the active party computes c
    c = e[decided] ^ (a[decided] == 128)
    index = lifts["chi"][: len(a)][decided, None] >> np.arange(6) & 1
    for what, bits in (("the partner's entry", c), *(("the table index", c ^ bit) for bit in index.T)):
        if float(stats.binomtest(int(bits.sum()), len(bits)).pvalue) < 1e-9:
            outcome.add("choices", "active", f"bits of the lift show {what}")
    fractions = {name: lifts[name] * 2.0**-lifts.high_bits for name in ("opened", "other", "apart")}
    for name, values in fractions.items():
        add_uniformity_tests(opened, f"words of a lift, {name}", values, lifts[name].astype(np.uint8))
    add_uniformity_tests(opened, "entries of k bits", lifts["b"] / 256.0, lifts["b"].astype(np.uint8))
    outcome.statistics("uniform", "partner", opened)
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {"shares: lifted entries": lifted}
