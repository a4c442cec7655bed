"""FDSKL against the centralised doubly stochastic gradient: float64, all columns in one table, recomputed features."""

from pathlib import Path

import numpy as np
import pytest
from builders import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Schedule
from securevfl.errors import ConfigError, PartiesError
from securevfl.families.fdskl.fdskl_optimizer import PRECONDITIONER_ROWS, block_order
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.families.fdskl.random_features import KernelExpansion, RandomFrequencies, cosines
from securevfl.models.losses import LOSSES
from securevfl.protocols.number_spaces import Phases
from securevfl.protocols.sums.base import SumProtocol
from tests.builders import REAL_TABLES


def kernel_parties(parties: int, loss: str, *, labelled: int = 1, rows: int = 90, seed: int = 0) -> list[vfl.Party]:
    generator = np.random.default_rng([parties, seed])
    blocks = [generator.normal(size=(rows, 1 + k % 3)) for k in range(parties)]
    f = np.sin(sum(block.sum(axis=1) for block in blocks))
    y = f if loss == "square" else (f > 0.2).astype(int)
    return [vfl.Party(f"p{k}", block, y if k < labelled else None, aligned=True) for k, block in enumerate(blocks)]


def kernel_job(model: Kernel, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"optimizer": vfl.FDSKL(), "protocol": vfl.Protocol(sum="direct"), "batch_size": 32}
    return vfl.Job(model=model, **(defaults | {"epochs": 3, "seed": 4, "scale": "none"} | keys))  # type: ignore[arg-type]


def features(run: vfl.Run, X: Floats, worker: str, k: int) -> Floats:
    """Return phi_k (n x D) of one worker from the pooled columns and the frequencies that the parties drew."""
    model = run.job.model
    assert isinstance(model, Kernel)
    drawn = {name: RandomFrequencies(model, part.state["key"], len(part.columns)) for name, part in run.parts.items()}
    w = np.vstack([drawn[name].w(worker, k) for name in run.parts])
    b = drawn[worker].offset(worker, k) / 2.0**32
    return np.sqrt(2) * np.cos(2 * np.pi * (X @ w + b))


def dsg(run: vfl.Run, parties: list[vfl.Party]) -> dict[str, Floats]:
    """Return alpha (K x D) of every worker by a plain loop."""
    job, model = run.job, run.job.model
    assert isinstance(model, Kernel)
    assert isinstance(job.optimizer, vfl.FDSKL)
    X = np.hstack([party.X for party in parties])
    workers = [party.name for party in parties if party.active]
    loss, y = LOSSES[model.loss_name], next(party.y for party in parties if party.active)
    assert y is not None
    targets = loss.targets(y, loss.classes(y))[:, 0]
    schedule = Schedule(
        len(X), batch_size=job.batch_size, epochs=job.epochs, seed=job.seed, test_fraction=0.0, reshuffle=False
    )
    assert len(X) <= PRECONDITIONER_ROWS, "the preconditioners are computed from all rows"
    alpha = {worker: np.zeros((model.blocks, model.block_size)) for worker in workers}
    turns = {worker: block_order(model.blocks, job.seed, i) for i, worker in enumerate(workers)}
    for t, batch in enumerate(schedule.iterations()):
        worker = workers[t % len(workers)]
        k = next(turns[worker])
        rows = X[batch.rows]
        f = sum(features(run, rows, w, j) @ alpha[w][j] for w in workers for j in range(model.blocks))
        g = loss.residual(f[:, None], targets[batch.rows, None])[:, 0]
        move = features(run, rows, worker, k).T @ g / len(rows) + model.l2 * alpha[worker][k]
        if job.optimizer.precondition:
            phi = features(run, X, worker, k)
            gram = model.loss.curvature / len(X) * phi.T @ phi
            move = np.linalg.solve(gram + job.optimizer.rho * np.eye(model.block_size), move)
        eta = job.optimizer.lr / (1 if job.optimizer.decay == "none" else (batch.epoch + 1))
        alpha[worker][k] -= eta * move
    return alpha


def assert_equal(run: vfl.Run, parties: list[vfl.Party], rtol: float = 1e-3) -> None:
    for worker, alpha in dsg(run, parties).items():
        theta = run.parts[worker].theta
        assert np.abs(theta - alpha.reshape(-1, 1)).max() <= rtol * np.abs(alpha).max()


@settings(max_examples=15)
@given(
    parties=st.integers(2, 5),
    kernel=st.sampled_from(["rbf", "laplace"]),
    loss=st.sampled_from(["square", "logistic", "smooth_hinge"]),
    labelled=st.integers(1, 3),
    precondition=st.booleans(),
    decay=st.sampled_from(["none", "inverse"]),
    seed=st.integers(0, 1000),
)
def test_equals_the_centralised_loop(
    parties: int, kernel: str, loss: str, labelled: int, precondition: bool, decay: str, seed: int
) -> None:
    model = Kernel(kernel=kernel, gamma=0.3, loss=loss, blocks=3, block_size=8, l2=0.01)
    optimizer = vfl.FDSKL(lr=0.4, decay=decay, precondition=precondition, rho=0.5)
    data = kernel_parties(parties, loss, labelled=min(labelled, parties), seed=seed)
    assert_equal(vfl.simulate(kernel_job(model, optimizer=optimizer, seed=seed), data), data)


TESTED_SUMS = [vfl.DirectSum(), vfl.TreeSum(), vfl.PairwiseSum(), vfl.CipherSum()]


@pytest.mark.parametrize("chosen", TESTED_SUMS, ids=[chosen.name for chosen in TESTED_SUMS])
@pytest.mark.parametrize("labelled", [1, 2])
def test_every_sum_trains_the_same_model(chosen: SumProtocol, labelled: int) -> None:
    model = Kernel(gamma=0.3, loss="smooth_hinge", blocks=2, block_size=8)
    data = kernel_parties(4, "smooth_hinge", labelled=labelled)
    run = vfl.simulate(kernel_job(model, protocol=vfl.Protocol(sum=chosen)), data)
    assert_equal(run, data)


@pytest.mark.parametrize("chosen", TESTED_SUMS[:3], ids=[chosen.name for chosen in TESTED_SUMS[:3]])
def test_sixteen_bits_halve_a_phase_and_cost_little(chosen: SumProtocol) -> None:
    data = kernel_parties(3, "logistic", labelled=1)
    sent = {}
    for bits, rtol in ((32, 1e-3), (16, 4e-3)):
        model = Kernel(gamma=0.3, loss="logistic", blocks=2, block_size=64, bits=bits)
        run = vfl.simulate(kernel_job(model, protocol=vfl.Protocol(sum=chosen)), data)
        assert_equal(run, data, rtol)
        sent[bits] = run.parts["p1"].counters.bytes_sent()
    if chosen.name != "direct":
        assert sent[16] < 0.6 * sent[32]


def test_other_frequencies_are_noticed() -> None:
    data = kernel_parties(3, "logistic")
    run = vfl.simulate(kernel_job(Kernel(gamma=0.3, blocks=2, block_size=8)), data)
    run.parts["p1"].state["key"] = bytes(32)
    with pytest.raises(AssertionError):
        assert_equal(run, data)


@pytest.mark.parametrize("labelled", [1, 2])
@pytest.mark.parametrize("loss", ["smooth_hinge", "square"])
def test_predictions_equal_the_expansion_and_survive_saving(labelled: int, loss: str, tmp_path: Path) -> None:
    data = kernel_parties(3, loss, labelled=labelled)
    model = Kernel(kernel="laplace", gamma=0.2, loss=loss, blocks=2, block_size=16)
    run = vfl.simulate(kernel_job(model, protocol=vfl.Protocol(sum="tree")), data)
    new = {party.name: party.X[:40] + 0.1 for party in data}
    X = np.hstack(list(new.values()))
    workers = [party.name for party in data if party.active]
    f = sum(
        features(run, X, worker, k) @ run.parts[worker].theta.reshape(2, 16)[k] for worker in workers for k in range(2)
    )
    np.testing.assert_allclose(run.decision(new)[:, 0], f, atol=2e-3)
    run.save(tmp_path)
    loaded = vfl.Run.load(tmp_path)
    np.testing.assert_array_equal(loaded.decision(new), run.decision(new))
    np.testing.assert_array_equal(loaded.predict(new), run.predict(new))
    assert run.parts["p2"].theta.shape == (0, 1)
    assert run.parts["p1"].state["key"].hex() not in repr(run)


def test_each_phase_crosses_once_in_four_bytes() -> None:
    data = kernel_parties(3, "logistic", rows=4096)
    model = Kernel(gamma=0.3, blocks=2, block_size=64)
    for chosen, passes in (("direct", 1), ("tree", 2), ("pairwise", 1)):
        job = kernel_job(model, protocol=vfl.Protocol(sum=chosen), batch_size=512, epochs=6)
        run = vfl.simulate(job, data)
        assert run.costs.bytes <= 4 * 4096 * model.features * 2 * passes * 1.02


def test_evaluations_while_training_do_not_change_it() -> None:
    data = kernel_parties(3, "logistic", rows=200)
    model = Kernel(gamma=0.3, blocks=2, block_size=16)
    job = kernel_job(model, test_fraction=0.3, evaluate_every=2)
    run = vfl.simulate(job, data)
    measured = [record["error"] for record in run.history if "error" in record]
    assert len(measured) == len(run.history) // 2
    messages = vfl.simulate(job, data).parts["p1"].counters.messages_sent()
    assert messages == vfl.simulate(kernel_job(model, test_fraction=0.3), data).parts["p1"].counters.messages_sent()


@pytest.mark.parametrize("bits", [16, 32])
def test_cosines_of_the_circle(bits: int) -> None:
    phases = np.random.default_rng(0).integers(0, 2**bits, 10_000, dtype=np.uint32)
    exact = np.cos(2 * np.pi * phases / 2.0**bits)
    assert np.abs(cosines(phases, bits) / (2**15 - 1) - exact).max() <= (np.pi + 1) * 2.0**-16  # type: ignore[arg-type]


@pytest.mark.parametrize(("kernel", "norm"), [("rbf", 2), ("laplace", 1)])
def test_features_approximate_the_kernel(kernel: str, norm: int) -> None:
    model = Kernel(kernel=kernel, gamma=0.4, blocks=1, block_size=20_000)
    frequencies = RandomFrequencies(model, bytes(range(32)), 3)
    X = np.random.default_rng(0).normal(size=(12, 3))
    expansion = KernelExpansion(model)
    offset: Phases = frequencies.offset("p0", 0)
    expansion.keep("rows", 0, cosines(frequencies.phases(X, "p0", 0, 32) + offset, 32))
    phi = expansion.phi("rows", 0)
    distance = (np.abs(X[:, None] - X[None]) ** norm).sum(axis=2)
    np.testing.assert_allclose(phi @ phi.T / model.block_size, np.exp(-0.4 * distance), atol=0.04)


def test_far_phases_wrap() -> None:
    model = Kernel(gamma=0.4, blocks=1, block_size=64)
    frequencies = RandomFrequencies(model, bytes(32), 1)
    w = frequencies.w("p0", 0)[0]
    X = np.array([[1.0], [2.0**40]])
    wrapped = np.remainder(X * w, 1.0) * 2.0**32
    gap = frequencies.phases(X, "p0", 0, 32).astype(np.int64) - np.rint(wrapped).astype(np.int64)
    assert (np.abs((gap + 2**31) % 2**32 - 2**31) <= 1).all()


def test_parties_and_workers_draw_apart() -> None:
    model = Kernel(gamma=0.4, blocks=2, block_size=500)
    one, other = (RandomFrequencies(model, bytes([n]) * 32, 2) for n in (1, 2))
    rows = [*one.w("a", 0), *one.w("a", 1), *one.w("b", 0), *other.w("a", 0)]
    off_diagonal = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(off_diagonal).max() < 0.2
    assert "secret" in repr(one)


def test_unsuitable_jobs_are_rejected() -> None:
    kernel, data = Kernel(gamma=0.3), kernel_parties(3, "logistic", labelled=2)
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="optimizer"):
        kernel_job(vfl.Logistic())  # type: ignore[arg-type]
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="optimizer"):
        kernel_job(kernel, optimizer=vfl.FedBCD(lr=0.1), protocol=vfl.Protocol(residual="open"))
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="protocol.residual"):
        kernel_job(vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1))  # type: ignore[arg-type]
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="protocol.residual"):
        kernel_job(kernel, protocol=vfl.Protocol(residual="open"))
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="reshuffle"):
        kernel_job(kernel, reshuffle=True)
    with pytest.raises(PartiesError):
        vfl.simulate(
            vfl.Job(
                model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1), protocol=vfl.Protocol(residual="open"), batch_size=9
            ),
            data,
        )


def test_a_job_reads_back() -> None:
    job = kernel_job(Kernel(gamma=0.3, loss="smooth_hinge", bits=16), optimizer=vfl.FDSKL(precondition=False))
    again = vfl.Job.from_dict(job.to_dict())
    assert again == job
    assert again.digest == job.digest
    assert job.to_dict()["model"]["loss"] == "smooth_hinge"


@pytest.mark.realdata
@pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="the real tables are not next to the checkout")
def test_phishing_in_few_passes() -> None:
    with np.load(REAL_TABLES / "phishing.npz") as table:
        X, y, sides = table["X"].astype(float), (table["y"] > 0).astype(int), (table["g"], table["h"])
    data = [
        vfl.Party(name, X[:, side], None if k else y, aligned=True)
        for k, (name, side) in enumerate(zip("gh", sides, strict=True))
    ]
    model = Kernel(gamma=0.1, loss="smooth_hinge", blocks=4)
    job = kernel_job(model, optimizer=vfl.FDSKL(rho=2.0), batch_size=1024, epochs=10, test_fraction=0.25)
    assert vfl.simulate(job, data).metrics["error"] <= 0.063
