"""The disclosure of phases in FDSKL to the party that receives their sum.

With frequencies from a shared seed, as in the paper, the receiver solves for the others' columns. With frequencies that
each party draws itself it cannot. As `explain` states, the sum still reveals distances, and the columns up to a linear
map if phases do not wrap.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Schedule
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.families.fdskl.random_features import RandomFrequencies
from securevfl.protocols.sums.direct_sum import PhaseSummand
from securevfl.runtime.observer import Event

ROWS, COLUMNS = 64, 3
MODEL = Kernel(gamma=0.01, blocks=2, block_size=128)  # phases of 0/1 columns stay within half a turn


def binary_parties(others: int) -> list[vfl.Party]:
    generator = np.random.default_rng(others)
    tables = [generator.integers(0, 2, (ROWS, COLUMNS)).astype(float) for _ in range(1 + others)]
    return [vfl.Party(f"p{k}", X, None if k else X.sum(axis=1) > 1, aligned=True) for k, X in enumerate(tables)]


def seen(parties: list[vfl.Party], model: Kernel = MODEL) -> tuple[vfl.Run, Floats, Floats]:
    """Return the run, the summed phases (turns, (n, M)) that the worker received, and the others' columns."""
    received: dict[str, list[NDArray[np.uint32]]] = {party.name: [] for party in parties[1:]}

    def observe(event: Event) -> None:
        if event.direction == "recv" and isinstance(event.message, PhaseSummand):
            received[event.peer].append(event.message.values)

    job = vfl.Job(
        model=model,
        optimizer=vfl.FDSKL(),
        protocol=vfl.Protocol(sum="direct"),
        batch_size=ROWS,
        epochs=1,
        scale="none",
    )
    run = vfl.simulate(job, parties, observe=observe)
    total = sum(parts[0] for parts in received.values())  # the one training batch: K x n x D
    turns = np.concatenate(list(total.view(np.int32) / 2.0**32), axis=1)  # type: ignore[union-attr]
    rows = Schedule(ROWS, batch_size=ROWS, epochs=1, seed=0, test_fraction=0, reshuffle=False).partition(0)[0]
    return run, turns, np.hstack([party.X[rows] for party in parties[1:]])


def guess(turns: Floats, key: bytes, others: int) -> Floats:
    """Return the others' columns by least squares, as if `key` gave their frequencies."""
    drawn = RandomFrequencies(MODEL, key, COLUMNS)
    w = np.hstack([drawn.w("p0", k) for k in range(MODEL.blocks)])
    if others == 2:  # a shared seed gives the second party the draws of its columns
        later = RandomFrequencies(MODEL, key, 2 * COLUMNS)
        w = np.hstack([later.w("p0", k) for k in range(MODEL.blocks)])
    solved: Floats = np.linalg.lstsq(w.T, turns.T, rcond=None)[0].T
    return solved


def error(columns: Floats, X: Floats) -> float:
    return float(np.sqrt(((columns - X) ** 2).mean()))


def test_a_shared_seed_reveals_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securevfl.families.fdskl.fdskl_participant.os.urandom", bytes)
    run, turns, X = seen(binary_parties(1))
    assert error(guess(turns, run.parts["p0"].state["key"], 1), X) < 1e-5


def test_private_frequencies_hide_columns() -> None:
    run, turns, X = seen(binary_parties(1))
    assert error(guess(turns, run.parts["p0"].state["key"], 1), X) > 0.4
    assert (
        error(guess(turns, run.parts["p1"].state["key"], 1), X) < 1e-5
    )  # the attack fails only because it lacks the key


def test_known_frequencies_reveal_columns_of_more_parties() -> None:
    run, turns, X = seen(binary_parties(2))
    drawn = [RandomFrequencies(MODEL, run.parts[name].state["key"], COLUMNS) for name in ("p1", "p2")]
    w = np.vstack([np.hstack([local.w("p0", k) for k in range(MODEL.blocks)]) for local in drawn])
    assert error(np.linalg.lstsq(w.T, turns.T, rcond=None)[0].T, X) < 1e-5
    assert error(guess(turns, run.parts["p0"].state["key"], 2), X) > 0.4


def test_keys_are_new_in_every_run_and_at_every_party() -> None:
    keys = [part.state["key"] for _ in range(2) for part in seen(binary_parties(2))[0].parts.values()]
    assert len(set(keys)) == 6
    assert all(len(key) == 32 for key in keys)


def test_sums_of_phases_reveal_distances() -> None:
    """With 2,048 random frequencies the standard error of a distance is 0.07."""
    _, turns, X = seen(binary_parties(1), MODEL.model_copy(update={"block_size": 1024}))
    cosines = np.cos(2 * np.pi * (turns[:, None] - turns[None])).mean(axis=2)
    squared = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(-np.log(cosines) / MODEL.gamma, squared, atol=0.25 * squared.max())
    assert np.corrcoef(cosines.ravel(), squared.ravel())[0, 1] < -0.95


def test_unwrapped_phases_reveal_a_linear_map() -> None:
    _, turns, X = seen(binary_parties(1))
    known = slice(0, 16)
    linear = np.linalg.lstsq(turns[known], X[known], rcond=None)[0]
    assert error(turns @ linear, X) < 1e-3


def test_the_sheet_states_both() -> None:
    parties = binary_parties(2)
    job = vfl.Job(model=MODEL, optimizer=vfl.FDSKL(), protocol=vfl.Protocol(sum="tree"))
    sheet = " ".join(vfl.explain(job, parties).split())
    assert "how similar any two rows are" in sheet
    assert "can compute these columns for all rows" in sheet
    assert "Residual from active" not in sheet
