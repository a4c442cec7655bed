"""A key holder that seals g = 0 and changes the opened values to read columns is detected, whatever the sum.

Without the checks, the next forward output is a raw column, for every engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto.kernel import opening_checks, row_products
from securevfl.crypto.kernel.gradient import KernelGradientHolder
from securevfl.crypto.kernel.opening_checks import MAX_CHECKS, MIN_CHECKS, columns_with_checks
from securevfl.crypto.kernel.row_parameters import OPENED_HEADER
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient, LatticeGradientParameters, LatticeHolder
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS, PaillierChecks
from securevfl.crypto.paillier.paillier_product import PaillierHolder
from securevfl.crypto.scheme import OpeningShape
from securevfl.errors import ProtocolError
from securevfl.families.rounds.rounds_family import RoundsFamily
from securevfl.families.transfer.transfer_family import TransferFamily
from securevfl.protocols.engines import Engine
from securevfl.protocols.residuals.sealed_residual import SealedActive
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.runtime.observer import Event
from tests.builders import raises_code
from tests.small_keys import SMALL

TESTED_ENGINES: list[Engine] = [vfl.Ckks(), SMALL]
TESTED_SUMS = {"direct": (vfl.DirectSum(), 2), "pairwise": (vfl.PairwiseSum(), 3), "tree": (vfl.TreeSum(), 3)}
ROWS = 60


@pytest.fixture
def deviating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the active party seal zeros and add a constant to the first value that it opens to anyone."""
    publish, by_lattice, by_paillier = SealedActive.publish, LatticeHolder.open, PaillierHolder.open
    on_kernel = KernelGradientHolder.open
    monkeypatch.setattr(SealedActive, "publish", lambda self, g, **remaining: publish(self, 0 * g, **remaining))
    monkeypatch.setattr(LatticeHolder, "open", lambda *arguments: moved(by_lattice(*arguments), 1 << 22))
    monkeypatch.setattr(KernelGradientHolder, "open", lambda *arguments: moved(on_kernel(*arguments), 1 << 25))

    def open_with_paillier(*arguments: Any) -> bytes:
        opened = by_paillier(*arguments)
        size = (len(opened) - 46) // ((arguments[2].columns + PAILLIER_CHECKS) * arguments[2].outputs)
        value = int.from_bytes(opened[46 : 46 + size], "big") + (1 << 8 * size - 14)
        return opened[:46] + (value % (1 << 8 * size)).to_bytes(size, "big") + opened[46 + size :]

    monkeypatch.setattr(PaillierHolder, "open", open_with_paillier)


def moved(opened: bytes, levels: int, place: int = 0) -> bytes:
    """Return the values that a lattice key holder opens, with one value changed by a number of levels."""
    values = np.frombuffer(opened, "<i4", offset=OPENED_HEADER.size).copy()
    values[place] += levels
    return opened[: OPENED_HEADER.size] + values.tobytes()


def opened_parties(parties: int) -> list[vfl.Party]:
    return [party.take(np.arange(ROWS, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=parties)]


def run(protocol: vfl.Protocol, parties: int, seen: list[Event], **keys: Any) -> None:
    defaults: dict[str, Any] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedSGD(lr=0.5),
        "batch_size": "all",
        "epochs": 2,
    }
    job = vfl.Job(
        **(defaults | keys), protocol=protocol, accepts=("columns", "rank", "fresh_equations", "small_metrics")
    )
    vfl.simulate(job, opened_parties(parties), workers=1, observe=seen.append)


@pytest.mark.parametrize("sums", TESTED_SUMS)
@pytest.mark.parametrize("engine", TESTED_ENGINES, ids=lambda engine: engine.name)
def test_a_changed_value_stops_the_run_and_names_the_holder(deviating: None, engine: Engine, sums: str) -> None:
    chosen, parties = TESTED_SUMS[sums]
    with raises_code(ProtocolError, "SVFL-PROTOCOL-CHEATING", party="bank"):
        run(vfl.Protocol(sum=chosen, residual=engine), parties, [])


@pytest.mark.exact_outputs
@pytest.mark.parametrize("engine", TESTED_ENGINES, ids=lambda engine: engine.name)
def test_without_the_checks_the_next_output_is_a_raw_column(
    deviating: None, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_products, "passes_checks", lambda *arguments: True)
    monkeypatch.setattr(PaillierChecks, "fits", lambda *arguments: True)
    assert column_read(vfl.Protocol(residual=engine)) > 0.9999


def column_read(protocol: vfl.Protocol) -> float:
    """Return |correlation| of the change of the shop's output between two exchanges with its first column."""
    seen: list[Event] = []
    run(protocol, 2, seen)
    return column_of(seen)


def outputs(seen: list[Event]) -> list[np.ndarray]:
    """Return the shop's outputs in each exchange."""
    sent = [event.message for event in seen if isinstance(event.message, Summand) and event.direction == "send"]
    return [np.asarray(item.values).ravel() for item in sent]


def column_of(seen: list[Event]) -> float:
    before, after = outputs(seen)[:2]
    change = after - before
    X = opened_parties(2)[1].X[: len(change)]
    return max(abs(np.corrcoef(change, column)[0, 1]) for column in X.T)


TRAININGS = {
    "local steps": {"optimizer": vfl.FedBCD(local_steps=3, lr=0.1)},
    "kept exchanges": {"optimizer": vfl.CeluVFL(R=3, W=2, xi=60, lr=0.1)},
    "curvature": {"optimizer": vfl.BlockNewton()},
    "classes": {"model": vfl.Softmax()},
}


@pytest.mark.parametrize("family", TRAININGS)
def test_every_way_to_train_by_rounds_is_checked(deviating: None, family: str) -> None:
    with raises_code(ProtocolError, "SVFL-PROTOCOL-CHEATING", party="bank"):
        run(vfl.Protocol(residual=vfl.Ckks()), 2, [], **TRAININGS[family])


EXAMPLES = {
    name: example
    for family in (RoundsFamily(), TransferFamily())
    for name, example in family.example_jobs().items()
    if example["protocol"].residual.seals and "neural" not in name
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_that_opens_is_checked(deviating: None, name: str) -> None:
    """Transfer learning in both directions, counts of bins, and all other requests to a key holder."""
    job = vfl.Job(**({"batch_size": ROWS, "epochs": 1} | EXAMPLES[name]))
    with pytest.raises(ProtocolError):
        vfl.simulate(job, vfl.datasets.breast_cancer(), workers=1)


def test_honest_openings_are_within_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """In standard deviations of the bound, no check exceeds 6, and the mean square is slightly below 1."""
    results: list[np.ndarray] = []
    fits = opening_checks.passes_checks

    def noted(opened: np.ndarray, rho: np.ndarray, levels: float, within: np.ndarray) -> bool:
        remaining = opened[len(rho) :] - rho.T @ opened[: len(rho)]
        remaining -= levels * np.rint(remaining / levels)
        results.append(remaining / within[:, None] * opening_checks.TEST_DEVIATIONS)
        return fits(opened, rho, levels, within)

    monkeypatch.setattr(row_products, "passes_checks", noted)
    rng = np.random.default_rng(0)
    for n, d, c in [(256, 15, 1), (256, 100, 1), (90, 1, 3), (3, 40, 1), (2000, 7, 2)] * 4:
        holder = LatticeGradient().keygen(columns=d)
        evaluator = LatticeGradient().evaluator(holder.public)
        J, g = rng.normal(size=(n, d)), rng.choice([-1.0, 1.0], size=(n, c))
        J[:, 0] = 0
        blinded, mask = evaluator.blind(evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0)))
        assert evaluator.unblind(holder.open(blinded, OpeningShape(n, c, d)), mask).shape == (d, c)
    all_ = np.concatenate([item.ravel() for item in results])
    assert np.abs(all_).max() < 6
    assert 0.1 < (all_**2).mean() < 1


@pytest.mark.parametrize("times", [2, 8, 32])
def test_a_change_passes_a_test_as_rarely_as_stated(times: int) -> None:
    """One value changed by `times` m tolerances passes one check with probability 1 / times."""
    d, levels = 12, LatticeGradientParameters().levels
    passed, draws = 0, 4000
    opened = np.zeros((d + 1, 1))
    opened[3] = times * 200.0 * np.sqrt(d / 3)
    for _ in range(draws):
        rho = opening_checks.draw_check_weights(d, 1)
        passed += opening_checks.passes_checks(opened, rho, levels, np.array([200.0]))
    assert passed / draws <= 1 / times + 6 * np.sqrt(1 / times / draws)  # in standard errors


@pytest.mark.parametrize(("n", "d", "checks"), [(256, 15, 17), (256, 100, 20), (4096, 100, 12), (22_500, 12, 3)])
def test_there_are_as_many_checks_as_the_table_says(n: int, d: int, checks: int) -> None:
    assert (
        MIN_CHECKS
        <= columns_with_checks(LatticeGradientParameters().choose(n, 1, d + MIN_CHECKS, 1), d) - d
        == checks
        <= MAX_CHECKS
    )
