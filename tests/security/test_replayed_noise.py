"""A run that is interrupted and resumed publishes each noisy residual once: a replayed round repeats its noise."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.defences import Gaussian, Noise
from securevfl.protocols.residuals.open_residual import OpenResidual, Residual
from securevfl.protocols.residuals.sealed_residual import SealedResidual
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints

EVERY, SIGMA = 3, 2.0
OPEN = OpenResidual(defence=Gaussian(sigma=SIGMA))
SEALED = SealedResidual(engine=vfl.Ckks(), defence=Gaussian(sigma=SIGMA))


class Cut(Exception):
    """Raised in place of a lost process."""


def interrupted_job(residual: ResidualProtocol = OPEN, *, mode: str = "parallel", batch: int = 50) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(local_steps=2, lr=0.2, mode=mode),  # type: ignore[arg-type]
        protocol=vfl.Protocol(sum="direct", residual=residual),
        batch_size=batch,
        epochs=3,
        accepts=["columns"],
    )


def interrupted_parties(parties: int = 2) -> list[vfl.Party]:
    rows = np.arange(200, dtype=np.intp)
    return [party.take(rows) for party in vfl.datasets.breast_cancer(parties=parties)]


def attempt(work: vfl.Job, folder: Path, at: int | None, observe: Callable[[Event], None], parties: int = 2) -> None:
    """Run from the files in the folder until an interruption after round `at`."""
    tables = interrupted_parties(parties)
    states = {party.name: Checkpoints(folder / party.name, party.name, every=EVERY) for party in tables}

    def on_round(done: int, of: int) -> None:
        if done == at:
            raise Cut

    if at is None:
        vfl.simulate(work, tables, checkpoints=states, observe=observe)
        return
    with pytest.raises(Cut):
        vfl.simulate(work, tables, checkpoints=states, observe=observe, on_round=on_round)


def received(work: vfl.Job, folder: Path, at: int | None, parties: int = 2) -> dict[str, list[Floats]]:
    """Return the residuals that passive parties received in such a run, by name and in order."""
    results: dict[str, list[Floats]] = {}

    def observe(event: Event) -> None:
        if event.direction == "recv" and isinstance(event.message, Residual):
            results.setdefault(event.me, []).append(np.array(event.message.g))

    attempt(work, folder, at, observe, parties)
    return results


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("at", [1, 2, 5, 8])
def test_a_replayed_round_publishes_the_same_residual(mode: str, at: int, tmp_path: Path) -> None:
    work = interrupted_job(mode=mode)
    first, second = received(work, tmp_path, at, 3), received(work, tmp_path, None, 3)
    start = at - at % EVERY
    for name, values in first.items():
        assert len(second[name]) == 12 - start
        for before, again in zip(values[start:at], second[name], strict=False):
            np.testing.assert_array_equal(before, again)
        full = [*values[:start], *second[name]]
        assert len({value.tobytes() for value in full}) == 12


def test_a_replayed_round_is_the_same_under_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[Floats] = []
    apply = Gaussian.apply

    def heard(self: Gaussian, g: Floats, prg: Prg) -> Floats:
        released.append(apply(self, g, prg))
        return released[-1]

    monkeypatch.setattr(Gaussian, "apply", heard)
    attempt(interrupted_job(SEALED), tmp_path, 5, lambda event: None)
    before = list(released)
    released.clear()
    attempt(interrupted_job(SEALED), tmp_path, None, lambda event: None)
    assert (len(before), len(released)) == (5, 9)
    np.testing.assert_array_equal(before[3], released[0])
    np.testing.assert_allclose(before[4], released[1], rtol=0, atol=1e-4)  # weights follow from CKKS openings here


def test_another_training_has_other_noise(tmp_path: Path) -> None:
    one, other = (
        received(interrupted_job(), tmp_path / "a", 1)["shop"][0],
        received(interrupted_job(), tmp_path / "b", 1)["shop"][0],
    )
    assert np.abs(one - other).mean() > SIGMA / 2


def average_error(folder: Path, times: int) -> float:
    """Return the error of the mean of all published versions of the first batch, after a number of interruptions.

    The batch has all 200 rows, so the standard error is 5 %, and an error of 35 % has P = 1e-11.
    """
    got = [received(interrupted_job(batch=200), folder, 1)["shop"][0] for _ in range(times)]
    clean = received(interrupted_job(OpenResidual(), batch=200), folder, 1)["shop"][0]
    return float(np.sqrt(np.mean((np.mean(got, axis=0) - clean) ** 2)))


def test_repeated_crashes_do_not_average_out_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert average_error(tmp_path / "kept", 16) == pytest.approx(SIGMA, rel=0.35)
    # the result with a key that exists in memory only
    monkeypatch.setattr(Noise, "take", lambda self, again: Prg.fresh("of each release"))
    assert average_error(tmp_path / "fresh", 16) == pytest.approx(SIGMA / 4, rel=0.35)
