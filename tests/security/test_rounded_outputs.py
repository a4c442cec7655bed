"""A key holder that changes opened values within the tolerance, and the outputs of the party that opens them.

The same value is changed in all of 100 iterations, with a sealed g of zeros. Outputs in full precision would be a raw
column. Outputs that are rounded by a fixed secret dither reveal by how many steps a row has moved, which is hardly ever
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import opening_checks, row_products
from securevfl.crypto.kernel.gradient import KernelGradientHolder
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.output_rounding import RoundedOutputs, output_step
from securevfl.protocols import joint_prediction
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals.sealed_residual import SealedActive
from tests.security.test_checked_openings import moved

VISITS = 100
TESTED_SUMS: dict[str, tuple[Any, int]] = {"direct": (vfl.DirectSum(), 2), "pairwise": (vfl.PairwiseSum(), 3)}


def rounded_parties(rows: int, columns: int, parties: int) -> list[vfl.Party]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    return [
        vfl.Party(("bank", "shop", "telco")[k], rng.normal(size=(rows, columns)), None if k else y, aligned=True)
        for k in range(parties)
    ]


def zero_residual_job(sums: Any, **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {"optimizer": vfl.FedSGD(lr=0.5), "batch_size": "all", "epochs": VISITS}
    accepts = ("columns", "rank", "fresh_equations", "small_metrics")
    protocol = vfl.Protocol(sum=sums, residual=vfl.Ckks())
    return vfl.Job(model=vfl.Logistic(), protocol=protocol, accepts=accepts, **defaults | keys)


def collected(
    monkeypatch: pytest.MonkeyPatch, sums: str, rows: int, columns: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums of outputs (iterations, n) that the active party collects, and the attacked column (n,).

    The holder knows the secret of the checks, so it changes the value by the most that passes.
    """
    publish, opens, fits = SealedActive.publish, KernelGradientHolder.open, opening_checks.passes_checks
    most, seen = list[int](), list[Floats]()

    def noted(opened: Floats, rho: Floats, levels: float, within: Floats) -> bool:
        most.append(int(0.9 * np.min(within / np.abs(rho[0]))))
        return fits(opened, rho, levels, within)

    collect = ActiveLink.collect

    def ahead(self: ActiveLink, batch: Any) -> Floats:
        seen.append(collect(self, batch))
        return seen[-1]

    monkeypatch.setattr(SealedActive, "publish", lambda self, g, **remaining: publish(self, 0 * g, **remaining))
    monkeypatch.setattr(row_products, "passes_checks", noted)
    monkeypatch.setattr(ActiveLink, "collect", ahead)
    chosen, parties = TESTED_SUMS[sums]

    def changed(*arguments: Any) -> bytes:
        return moved(opens(*arguments), min(most) if len(most) >= parties - 1 else 0)

    monkeypatch.setattr(KernelGradientHolder, "open", changed)
    tables = rounded_parties(rows, columns, parties)
    vfl.simulate(zero_residual_job(chosen), tables, workers=1)
    assert len(seen) == VISITS
    return np.array([item[:, 0] for item in seen]), tables[1].X[:, 0]


def correlation(H: NDArray[np.float64], column: NDArray[np.float64]) -> float:
    """Return the best |correlation| with a column (n,), of the slope of the sums H (iterations, n) and of their change.

    It is 0 if neither varies.
    """
    at = np.arange(len(H)) - (len(H) - 1) / 2
    views = [at @ H, H[-1] - H[0]]
    return max((abs(np.corrcoef(view, column)[0, 1]) for view in views if view.std()), default=0.0)


def read(monkeypatch: pytest.MonkeyPatch, sums: str, rows: int, columns: int) -> float:
    """Return the `correlation` of an attack on a training of this size."""
    result = correlation(*collected(monkeypatch, sums, rows, columns))
    print(f"{sums}, {rows} x {columns}: {result:.3f}")
    return result


# Standard deviations of a correlation over runs are 0.08 and 0.03; outputs in full precision give 0.99 and 0.70.
@pytest.mark.slow
@pytest.mark.parametrize(("sums", "rows", "columns", "most"), [("direct", 2000, 15, 0.6), ("pairwise", 1000, 15, 0.25)])
def test_accepted_changes_in_every_iteration_reveal_no_column(
    sums: str, rows: int, columns: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(monkeypatch, sums, rows, columns) <= most


@pytest.mark.slow
@pytest.mark.parametrize("sums", TESTED_SUMS)
@pytest.mark.parametrize(("rows", "columns"), [(569, 15), (1000, 100), (4096, 100), (22_500, 12)])
def test_the_largest_change_in_every_iteration_for_more_sizes(
    sums: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100 columns the largest change passes; six standard errors are added."""
    assert read(monkeypatch, sums, rows, columns) <= (0.25 if columns == 100 else 0.2) + 6 / np.sqrt(rows)


@pytest.mark.parametrize("sums", TESTED_SUMS)
def test_outputs_in_full_precision_reveal_the_column(sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchParticipant, "sendable_outputs", lambda self, H, *_: H)
    assert read(monkeypatch, sums, 300, 5) > (0.99 if sums == "direct" else 0.6)  # the sum of two columns


def test_a_fresh_dither_in_each_iteration_averages_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is why each row has one dither in a run: of the same outputs, rounded with both kinds of dither."""
    with monkeypatch.context() as patch:
        patch.setattr(BatchParticipant, "sendable_outputs", lambda self, H, *_: H)
        H, column = collected(patch, "direct", 2000, 15)
    rng, step, rows = np.random.default_rng(0), 1 / 64, np.arange(2000)
    again = correlation(np.floor(H / step + rng.random(H.shape)) * step, column)
    once = []
    for key in range(5):
        rounded = RoundedOutputs(bytes([key]) * 32, 2000, 1, step)
        once.append(correlation(np.array([rounded(at[:, None], rows)[:, 0] for at in H]), column))
    assert again > max(once) + 0.1


TRAININGS: dict[str, dict[str, Any]] = {
    "one step": {},
    "local steps": {"optimizer": vfl.FedBCD(local_steps=3, lr=0.1)},
    "kept exchanges": {"optimizer": vfl.CeluVFL(R=3, W=2, lr=0.1)},
    "curvature": {"optimizer": vfl.BlockNewton()},
    "classes": {"model": vfl.Softmax()},
    "batches": {"batch_size": 40},
    "evaluated": {"test_fraction": 0.25, "evaluate_every": 2},
}


@pytest.mark.parametrize("family", TRAININGS)
def test_outputs_are_multiples_of_a_step_with_one_dither_a_row(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every family, batches and evaluations: outputs are multiples of s with the same dither each time."""
    sent, below = list[Floats](), dict[int, Floats]()
    rounded = RoundedOutputs.__call__

    def noted(self: RoundedOutputs, H: Floats, rows: Any) -> Floats:
        result = rounded(self, H, rows)
        for row, tables in zip(rows.tolist(), self._dither[rows], strict=True):
            assert np.array_equal(below.setdefault(row, tables), tables)
        sent.append(result)
        return result

    monkeypatch.setattr(RoundedOutputs, "__call__", noted)
    passed = list[Floats]()
    for owner, name in ((PassiveLink, "contribute"), (joint_prediction, "predict")):
        assert hasattr(owner, name)
    tables, keys = rounded_parties(120, 4, 2), {"epochs": 4, "batch_size": "all"} | TRAININGS[family]
    generated = zero_residual_job(vfl.DirectSum(), **{key: value for key, value in keys.items() if key != "model"})
    if "model" in keys:
        y = np.random.default_rng(1).integers(0, 3, 120)
        tables[0] = vfl.Party("bank", tables[0].X, y, aligned=True)
        generated = generated.model_copy(update={"model": keys["model"]})

    def observe(event: Any) -> None:
        if type(event.message).__name__ == "Summand" and event.direction == "send":
            passed.append(np.asarray(event.message.values))

    vfl.simulate(generated, tables, workers=1, observe=observe)
    step = output_step(len(generated.schedule(tables[0].register).train))
    assert len(passed) == len(sent) > 1
    for one in passed:
        assert np.array_equal(one, np.rint(one / step) * step)


def test_the_mean_of_rounded_outputs_is_the_output() -> None:
    """The mean over dithers agrees within six standard errors."""
    H = np.random.default_rng(0).normal(size=(20_000, 1))
    sent = RoundedOutputs(bytes(32), 20_000, 1, 0.125)(H, np.arange(20_000))
    assert abs((sent - H).mean()) < 6 * 0.125 / np.sqrt(6 * 20_000)
    assert np.abs(sent - H).max() <= 0.125


@pytest.mark.parametrize(("rows", "step"), [(100, 1 / 8), (10_000, 1 / 8), (22_500, 1 / 16), (1_000_000, 1 / 32)])
def test_steps_by_rows(rows: int, step: float) -> None:
    assert output_step(rows) == step
