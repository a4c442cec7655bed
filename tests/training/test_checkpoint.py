"""A run that is interrupted in any round and resumed ends with the weights of an uninterrupted run."""

import stat
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_job, raises_code, random_parties

import securevfl as vfl
from securevfl.base.checked_files import read_checked_json, write_checked_json
from securevfl.data.party import Helper
from securevfl.errors import DataError
from securevfl.families import leak_kinds
from securevfl.families.score_results import Measurement
from securevfl.families.state import State
from securevfl.protocols.engines import Engine
from securevfl.protocols.sums.base import SumProtocol
from securevfl.training.checkpoint import MAX_CHECKPOINTS, Checkpoint, Checkpoints, common_round
from securevfl.training.run_setup import run_key
from tests.disclosure.test_score_bits import EXAMPLES, independent_tables
from tests.small_keys import SMALL


class Cut(Exception):
    """Raised in place of a lost process."""


def local_steps_job(sums: SumProtocol | str, residual: Engine | str | None, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(l2=1e-3), "batch_size": 100, "epochs": 3, "seed": 2}
    defaults |= {"optimizer": vfl.FedBCD(local_steps=2, lr=0.2, decay="sqrt_t")}
    return vfl.Job(
        **(defaults | keys), protocol=vfl.Protocol(sum=sums, residual=residual), accepts=["columns", "sequential"]
    )


def own_checkpoints(folder: Path, names: list[str], every: int = 3) -> dict[str, Checkpoints]:
    return {name: Checkpoints(folder / name, name, every=every) for name in names}


def interrupted(work: vfl.Job, parties: Sequence[Any], folder: Path, *stops: int, every: int = 3) -> vfl.Run:
    """Return the run that is interrupted after each of these rounds and resumed each time."""
    names = [party.name for party in parties]
    for stop in stops:

        def on_round(done: int, of: int, stop: int = stop) -> None:
            if done == stop:
                raise Cut

        with pytest.raises(Cut):
            vfl.simulate(work, parties, checkpoints=own_checkpoints(folder, names, every), on_round=on_round)
    return vfl.simulate(work, parties, checkpoints=own_checkpoints(folder, names, every))


@cache
def undisturbed(sums: str, residual: Engine | str) -> vfl.Run:
    """Return the uninterrupted run, which tests only read."""
    return vfl.simulate(local_steps_job(sums, residual), vfl.datasets.breast_cancer(parties=3))


@pytest.mark.exact_outputs
@pytest.mark.parametrize(
    ("sums", "residual", "tolerance", "at"),
    [
        *[("direct", "open", 0.0, at) for at in (1, 3, 8, 17)],
        *[("pairwise", "open", 0.0, at) for at in (3, 8)],
        pytest.param("tree", SMALL, 0.0, 8, marks=pytest.mark.slow),
        *[("direct", vfl.Ckks(), 1e-3, at) for at in (1, 8)],
    ],
)
@pytest.mark.long
def test_the_weights_are_those_of_the_undisturbed_run(
    sums: str, residual: Engine | str, tolerance: float, at: int, tmp_path: Path
) -> None:
    parties = vfl.datasets.breast_cancer(parties=3)
    work = local_steps_job(sums, residual)
    undisturbed_run, again = undisturbed(sums, residual), interrupted(work, parties, tmp_path, at)
    for name, part in undisturbed_run.parts.items():
        np.testing.assert_allclose(again.parts[name].theta, part.theta, rtol=0, atol=tolerance)
    assert again.costs.rounds == undisturbed_run.costs.rounds
    assert [record["round"] for record in again.history] == [record["round"] for record in undisturbed_run.history]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_two_interruptions_leave_the_count_of_rounds(name: str, tmp_path: Path) -> None:
    """A kernel model exchanges the phases of all batches before its first round, and after each interruption."""
    work = vfl.Job(**{"batch_size": 60, "epochs": 2} | EXAMPLES[name] | {"accepts": [*leak_kinds()]})
    helpers = [Helper(helper, role) for helper, role in work.family.example_helpers]
    parties = [*independent_tables(work.family.max_parties or 3), *helpers]
    undisturbed_run = vfl.simulate(work, parties)
    stops = [stop for stop in (2, 4) if stop < undisturbed_run.history[-1]["round"]]
    resumed = interrupted(work, parties, tmp_path, *stops, every=1)
    assert resumed.costs.rounds == undisturbed_run.costs.rounds * (1 + len(stops) if "kernel" in name else 1)
    assert [record["round"] for record in resumed.history] == [record["round"] for record in undisturbed_run.history]


def test_a_kernel_model_goes_on_too(tmp_path: Path) -> None:
    bank, shop, telco = vfl.datasets.breast_cancer(parties=3)
    work = local_steps_job(
        "tree",
        None,
        model=vfl.Kernel(gamma=0.05, blocks=3, block_size=16),
        optimizer=vfl.FDSKL(),
    )
    parties = [bank, shop, telco]
    names = [party.name for party in parties]
    first = own_checkpoints(tmp_path / "a", names)
    again = interrupted(work, parties, tmp_path / "a", 10)
    assert again.metrics["auc"] > 0.85  # 48 features drawn from fresh secrets
    for party in parties:
        state = first[party.name].load(run_key(work, party), 3)
        assert again.parts[party.name].state["key"] == state.state["key"]


def test_states_of_another_training_are_not_mixed_in(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer(parties=3)
    model = vfl.Kernel(gamma=0.05, blocks=3, block_size=16)
    work = local_steps_job("tree", None, model=model, optimizer=vfl.FDSKL())

    def cut(folder: Path, at: int) -> dict[str, Checkpoints]:
        states = own_checkpoints(folder, [party.name for party in parties])

        def on_round(done: int, of: int) -> None:
            if done == at:
                raise Cut

        with pytest.raises(Cut):
            vfl.simulate(work, parties, checkpoints=states, on_round=on_round)
        return states

    one, other = cut(tmp_path / "one", 8), cut(tmp_path / "other", 8)
    mixed = one | {"telco": other["telco"]}
    drawn = {party.name: mixed[party.name].load(run_key(work, party), 3) for party in parties}
    assert drawn["bank"].run != drawn["telco"].run
    run = vfl.simulate(work, parties, checkpoints=mixed)
    assert all(part.state["key"] != drawn[name].state["key"] for name, part in run.parts.items())
    assert len({part.run for part in run.parts.values()} - {state.run for state in drawn.values()}) == 1


def test_states_are_private_few_and_checked(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "shop", every=5)
    digest = bytes(range(32))
    theta = np.random.default_rng(0).normal(size=(3, 2))
    for rounds in range(5, 50, 5):
        checkpoints.save(
            digest, Checkpoint(rounds, "first", [], {"shop": "ab" * 32}, State(theta=theta, noise=b"secret noise"))
        )
    assert checkpoints.rounds(digest) == (30, 35, 40, 45)
    assert len(checkpoints.rounds(digest)) == MAX_CHECKPOINTS
    assert checkpoints.rounds(digest[::-1]) == ()
    np.testing.assert_array_equal(checkpoints.load(digest, 45).state["theta"], theta)
    assert checkpoints.load(digest, 45).state["noise"] == b"secret noise"
    assert "secret noise" not in repr(checkpoints.load(digest, 45))
    assert checkpoints.load(digest, 45).identities == {"shop": "ab" * 32}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())
    spoilt = max(tmp_path.iterdir())
    text = spoilt.read_text()
    write_checked_json(spoilt, read_checked_json(spoilt)[0] | {"schema": "securevfl.checkpoint/4"})
    with raises_code(DataError, "SVFL-CHECKPOINT"):
        checkpoints.load(digest, 45)
    for other in (
        "[]",
        '{"schema": "securevfl.checkpoint/7"}',
        text.replace('{"shop"', '["shop"').replace('"}', '"]'),
    ):
        spoilt.write_text(other)
        with raises_code(DataError, "SVFL-CHECKPOINT"):
            checkpoints.load(digest, 45)
    spoilt.write_text(text[:40])
    with raises_code(DataError, "SVFL-CHECKPOINT"):
        checkpoints.load(digest, 45)


def test_a_state_that_never_changes_serves_every_round_before_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "shop", every=5)
    for rounds in range(5, 50, 5):
        checkpoints.save(bytes(32), Checkpoint(rounds, "first", [], {}, State(key=b"key"), constant=True))
    assert checkpoints.rounds(bytes(32)) == tuple(range(0, 50, 5))
    assert checkpoints.rounds(bytes(range(32))) == ()
    assert checkpoints.load(bytes(32), 10) == Checkpoint(10, "first", [], {}, State(key=b"key"), constant=True)


@pytest.mark.parametrize("constant", [True, False])
def test_a_training_has_ended_only_in_its_final_state(constant: bool, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "shop", every=5)
    for rounds in (5, 10, 15):
        checkpoints.save(
            bytes(32), Checkpoint(rounds, "first", [], {}, State(key=b"key"), constant=constant, over=rounds == 15)
        )
    assert [checkpoints.load(bytes(32), rounds).over for rounds in (5, 9, 10, 11, 15)] == [
        False,
        False,
        False,
        False,
        True,
    ]


def test_the_last_round_that_all_have_is_taken() -> None:
    assert common_round([(3, 6, 9), (6, 9, 12), (3, 6)]) == 6
    assert common_round([(0, 3, 6), (0,)]) == 0
    assert common_round([(3, 6), ()]) is common_round([(3,), (6,)]) is None


@pytest.mark.parametrize("same_run", [False, True])
def test_a_cleared_training_leaves_no_file(same_run: bool, tmp_path: Path) -> None:
    """Every kind of file that a training stores is removed, and no file of another job or party."""
    part = vfl.simulate(make_job(), random_parties(rows=60)).parts["shop"]
    stores = [Checkpoints(tmp_path, name) for name in ("shop", "shops")]
    jobs = [bytes(32), bytes([1] * 32)]
    for store in stores:
        for job in jobs:
            store.begin(job, "ab" * 16)
            store.save(job, Checkpoint(10, "ab" * 16, [], {}, State({}), best=State({})))
            store.evaluations(job).store(10, Measurement({"loss": 0.5}))
            store.finish(job, part)
    stored = {path.name for path in tmp_path.iterdir()}
    own_files = {name for name in stored if name.startswith(f"shop.{bytes(8).hex()}.")}
    assert len(stored) == 4 * len(own_files) == 4 * 4
    for name in own_files:  # a process that is killed leaves an incomplete file
        (tmp_path / f".{name}.123").touch()
    stores[0].clear(jobs[0], same_run=same_run)
    left = {path.name for path in tmp_path.iterdir()} - (stored - own_files)
    assert left == ({name for name in own_files if "begun" in name} if same_run else set())
    assert stores[0].evaluations(jobs[0]).numbers == stores[0].rounds(jobs[0]) == ()
    for store, job in ((stores[0], jobs[1]), (stores[1], jobs[0]), (stores[1], jobs[1])):
        assert store.evaluations(job).numbers == (10,)
        store.clear(job)
    assert not same_run or stores[0].begin(jobs[0], "cd" * 16) == "ab" * 16
    stores[0].clear(jobs[0])
    assert not tmp_path.exists(), "the folder is removed with its last file"
