"""A key holder that moves what it opens by as much as passes: what the outputs of the party it opens to then show.

The same value at all of 100 visits, under a sealed g of zeros. Outputs in full precision are a raw column; rounded by a
secret dither that stays, they show by how many steps a row has moved, which is hardly ever one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import opening_checks, row_products
from securevfl.crypto.kernel.gradient import KernelGradientHolder
from securevfl.families import output_rounding
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.output_rounding import RoundedOutputs, output_step
from securevfl.protocols import joint_prediction
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals.sealed_residual import SealedActive
from tests.security.test_checked_openings import moved

VISITS = 100
SUMS: dict[str, tuple[Any, int]] = {"direct": (vfl.DirectSum(), 2), "pairwise": (vfl.PairwiseSum(), 3)}


def tables(rows: int, columns: int, parties: int) -> list[vfl.Party]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    return [
        vfl.Party(("bank", "shop", "telco")[k], rng.normal(size=(rows, columns)), None if k else y, aligned=True)
        for k in range(parties)
    ]


def job(sums: Any, **keys: Any) -> vfl.Job:
    own: dict[str, Any] = {"optimizer": vfl.FedSGD(lr=0.5), "batch_size": "all", "epochs": VISITS}
    accepts = ("columns", "rank", "fresh_equations", "small_metrics")
    protocol = vfl.Protocol(sum=sums, residual=vfl.Ckks())
    return vfl.Job(model=vfl.Logistic(), protocol=protocol, accepts=accepts, **own | keys)


def read(monkeypatch: pytest.MonkeyPatch, sums: str, rows: int, columns: int) -> float:
    """The best |correlation| with the column aimed at, of the slope of the sums over the visits and of their change.

    The holder knows the checks' secret, so that it moves the value by the most that passes.
    """
    publish, opens, fits = SealedActive.publish, KernelGradientHolder.open, opening_checks.passes_checks
    most, seen = list[int](), list[Floats]()

    def noted(opened: Floats, rho: Floats, levels: float, within: Floats) -> bool:
        most.append(int(0.9 * np.min(within / np.abs(rho[0]))))
        return fits(opened, rho, levels, within)

    collect = ActiveLink.ahead

    def ahead(self: ActiveLink, batch: Any) -> Floats:
        seen.append(collect(self, batch))
        return seen[-1]

    monkeypatch.setattr(SealedActive, "publish", lambda self, g, **rest: publish(self, 0 * g, **rest))
    monkeypatch.setattr(row_products, "passes_checks", noted)
    monkeypatch.setattr(ActiveLink, "ahead", ahead)
    chosen, parties = SUMS[sums]

    def changed(*given: Any) -> bytes:
        return moved(opens(*given), min(most) if len(most) >= parties - 1 else 0)

    monkeypatch.setattr(KernelGradientHolder, "open", changed)
    own = tables(rows, columns, parties)
    vfl.simulate(job(chosen), own, workers=1)
    H, at = np.array([each[:, 0] for each in seen]), np.arange(VISITS) - (VISITS - 1) / 2
    assert len(H) == VISITS
    views = [at @ H, H[-1] - H[0]]
    found = [abs(np.corrcoef(view, own[1].X[:, 0])[0, 1]) for view in views if view.std()]
    print(f"{sums}, {rows} x {columns}: {max(found, default=0.0):.3f}")
    return max(found, default=0.0)


# Over runs .08 and .03 are the deviations of a correlation; outputs in full precision give .99 and .70.
@pytest.mark.parametrize(("sums", "rows", "columns", "most"), [("direct", 2000, 15, 0.6), ("pairwise", 1000, 15, 0.25)])
def test_a_change_that_passes_at_every_visit_reads_no_column(
    sums: str, rows: int, columns: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(monkeypatch, sums, rows, columns) <= most


@pytest.mark.slow
@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize(("rows", "columns"), [(569, 15), (1000, 100), (4096, 100), (22_500, 12)])
def test_the_largest_change_at_every_visit_for_more_sizes(
    sums: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 100 columns a change that passes may be largest; six standard errors of chance on top."""
    assert read(monkeypatch, sums, rows, columns) <= (0.25 if columns == 100 else 0.2) + 6 / np.sqrt(rows)


@pytest.mark.parametrize("sums", SUMS)
def test_outputs_in_full_precision_are_the_column(sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchParticipant, "sendable_outputs", lambda self, H, *_: H)
    assert read(monkeypatch, sums, 300, 5) > (0.99 if sums == "direct" else 0.6)  # of two columns that are added up


def test_a_fresh_dither_each_visit_is_averaged_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured beside it: why one dither a row and run."""
    rng = np.random.default_rng(0)

    def fresh(self: RoundedOutputs, H: Floats, rows: Any) -> Floats:
        return np.asarray(np.floor(H / self._step + rng.random(H.shape)) * self._step)

    monkeypatch.setattr(RoundedOutputs, "__call__", fresh)
    monkeypatch.setattr(output_rounding, "MAX_OUTPUT_STEP", 1 / 64)
    again = read(monkeypatch, "direct", 2000, 15)
    monkeypatch.undo()
    monkeypatch.setattr(output_rounding, "MAX_OUTPUT_STEP", 1 / 64)
    assert again > read(monkeypatch, "direct", 2000, 15) + 0.1


FAMILIES: dict[str, dict[str, Any]] = {
    "one step": {},
    "local steps": {"optimizer": vfl.FedBCD(local_steps=3, lr=0.1)},
    "kept exchanges": {"optimizer": vfl.CeluVFL(R=3, W=2, lr=0.1)},
    "curvature": {"optimizer": vfl.BlockNewton()},
    "classes": {"model": vfl.Softmax()},
    "batches": {"batch_size": 40},
    "evaluated": {"test_fraction": 0.25, "evaluate_every": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_output_of_a_run_is_whole_steps_with_one_dither_a_row(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every family, in batches and evaluations: what goes up is a multiple of s, by the same dither each time."""
    sent, below = list[Floats](), dict[int, Floats]()
    rounded = RoundedOutputs.__call__

    def noted(self: RoundedOutputs, H: Floats, rows: Any) -> Floats:
        found = rounded(self, H, rows)
        for row, own in zip(rows.tolist(), self._dither[rows], strict=True):
            assert np.array_equal(below.setdefault(row, own), own)
        sent.append(found)
        return found

    monkeypatch.setattr(RoundedOutputs, "__call__", noted)
    passed = list[Floats]()
    for owner, name in ((PassiveLink, "contribute"), (joint_prediction, "predict")):
        assert hasattr(owner, name)
    own, keys = tables(120, 4, 2), {"epochs": 4, "batch_size": "all"} | FAMILIES[family]
    made = job(vfl.DirectSum(), **{key: value for key, value in keys.items() if key != "model"})
    if "model" in keys:
        y = np.random.default_rng(1).integers(0, 3, 120)
        own[0] = vfl.Party("bank", own[0].X, y, aligned=True)
        made = made.model_copy(update={"model": keys["model"]})

    def observe(event: Any) -> None:
        if type(event.message).__name__ == "Part" and event.direction == "send":
            passed.append(np.asarray(event.message.values))

    vfl.simulate(made, own, workers=1, observe=observe)
    step = output_step(len(made.schedule(own[0].register).train))
    assert len(passed) == len(sent) > 1
    for one in passed:
        assert np.array_equal(one, np.rint(one / step) * step)


def test_the_mean_of_what_is_sent_is_the_output() -> None:
    """Over dithers, for six standard errors."""
    H = np.random.default_rng(0).normal(size=(20_000, 1))
    sent = RoundedOutputs(bytes(32), 20_000, 1, 0.125)(H, np.arange(20_000))
    assert abs((sent - H).mean()) < 6 * 0.125 / np.sqrt(6 * 20_000)
    assert np.abs(sent - H).max() <= 0.125


@pytest.mark.parametrize(("rows", "step"), [(100, 1 / 8), (10_000, 1 / 8), (22_500, 1 / 16), (1_000_000, 1 / 32)])
def test_steps_by_rows(rows: int, step: float) -> None:
    assert output_step(rows) == step
