"""Every sum with every residual gives the same model, declares all messages and counts all bytes."""

from collections import defaultdict

import numpy as np
import pytest

import securevfl as vfl
from securevfl.families.message_declarations import run_declarations
from securevfl.optim.optimizer import Training
from securevfl.protocols.engines import Engine
from securevfl.protocols.sums.base import SumProtocol
from securevfl.protocols.sums.pairwise_sum import MaskedSummand
from securevfl.runtime.codec import encode_frame
from securevfl.runtime.costs import Stage
from securevfl.runtime.observer import Event
from tests.builders import cancer_parties
from tests.small_keys import SMALL

TESTED_SUMS: list[SumProtocol] = [
    vfl.DirectSum(),
    vfl.CipherSum(engine=vfl.Ckks()),
    vfl.CipherSum(engine=SMALL),
    vfl.CipherSum(engine=vfl.Ckks(), topology="star"),
    vfl.TreeSum(),
    vfl.TreeSum(topology="star"),
    vfl.TreeSum(topology="ring"),
    vfl.PairwiseSum(),
]
TESTED_RESIDUALS: list[Engine | str] = ["open", vfl.Ckks(), SMALL]
# every sum with the first two residuals, every residual with the first of each kind of sum
SUM_KINDS = [next(sums for sums in TESTED_SUMS if type(sums) is kind) for kind in dict.fromkeys(map(type, TESTED_SUMS))]
PAIRS = [
    (sums, residual)
    for sums in TESTED_SUMS
    for residual in (TESTED_RESIDUALS if sums in SUM_KINDS else TESTED_RESIDUALS[:2])
]
# bounds on |theta - theta without encryption|: masks round to 2^-40, engines as their docstrings state
TOLERANCE = 1e-3


def job_of(sums: SumProtocol, residual: Engine | str, optimizer: Training | None = None, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(l2=1e-3), "batch_size": 100, "epochs": 2, "seed": 5}
    optimizer = optimizer or vfl.FedBCD(local_steps=3, lr=0.2)
    protocol = vfl.Protocol(sum=sums, residual=residual)  # type: ignore[arg-type]
    accepts = ["columns", "sequential"]
    return vfl.Job(**(defaults | keys), optimizer=optimizer, protocol=protocol, accepts=accepts)


@pytest.fixture(scope="module")
def four_parties() -> list[vfl.Party]:
    return cancer_parties(4, rows=180)


def weights(run: vfl.Run) -> np.ndarray:
    return np.vstack([part.theta for part in run.parts.values()])


@pytest.fixture(scope="module")
def plain(four_parties: list[vfl.Party]) -> np.ndarray:
    return weights(vfl.simulate(job_of(vfl.DirectSum(), "open"), four_parties))


@pytest.mark.exact_outputs
@pytest.mark.parametrize(("sums", "residual"), PAIRS, ids=str)
@pytest.mark.long
def test_every_pair_gives_the_same_model(
    sums: SumProtocol, residual: Engine | str, four_parties: list[vfl.Party], plain: np.ndarray
) -> None:
    job = job_of(sums, residual)
    events: list[Event] = []
    run = vfl.simulate(job, four_parties, observe=events.append)
    np.testing.assert_allclose(weights(run), plain, atol=TOLERANCE)
    assert run.metrics["auc"] > 0.99

    roles = run.roles
    declared = {(item.message, item.sender, item.receiver) for item in run_declarations(job.family, job, roles)}
    seen = {(type(e.message), roles.role(e.peer), roles.role(e.me)) for e in events if e.direction == "recv"}
    assert seen <= declared


def test_bytes_are_those_of_the_frames(four_parties: list[vfl.Party]) -> None:
    events: list[Event] = []
    run = vfl.simulate(job_of(vfl.CipherSum(), vfl.Ckks()), four_parties, observe=events.append)
    counted: dict[str, int] = defaultdict(int)
    order: dict[tuple[str, str, str], int] = defaultdict(int)
    for event in events:
        if event.direction == "send":
            place = (event.me, event.peer, event.subchannel)
            frame = encode_frame(
                event.message,
                session=bytes(16),
                sender=event.me,
                receiver=event.peer,
                subchannel=event.subchannel,
                seq=order[place],
            )
            order[place] += 1
            counted[event.me] += len(frame)
    assert {name: part.counters.bytes_sent() for name, part in run.parts.items()} == dict(counted)
    assert run.costs.bytes == sum(part.counters.bytes_sent(Stage.TRAIN) for part in run.parts.values()) > 0


@pytest.mark.exact_outputs
@pytest.mark.parametrize("model", [vfl.Square(l2=0.01), vfl.SmoothHinge(), vfl.Logistic()], ids=lambda m: m.name)
@pytest.mark.parametrize("engine", [vfl.Ckks(), SMALL], ids=lambda e: e.name)
@pytest.mark.long
def test_every_loss_trains_sealed(model: vfl.Logistic, engine: Engine, four_parties: list[vfl.Party]) -> None:
    two = vfl.datasets.diabetes() if model.name == "square" else four_parties[:2]
    keys = {"model": model, "epochs": 3}
    sealed = vfl.simulate(job_of(vfl.DirectSum(), engine, **keys), two)
    opened = vfl.simulate(job_of(vfl.DirectSum(), "open", **keys), two)
    np.testing.assert_allclose(weights(sealed), weights(opened), atol=TOLERANCE)


@pytest.mark.parametrize(
    "engine",
    [vfl.Ckks(), pytest.param(SMALL, marks=pytest.mark.slow)],
    ids=lambda e: e.name,
)
@pytest.mark.long
def test_several_outputs_train_sealed(engine: Engine) -> None:
    two = vfl.datasets.digits()
    keys = {"model": vfl.Softmax(), "epochs": 1, "batch_size": 900}
    sealed = vfl.simulate(job_of(vfl.DirectSum(), engine, **keys), two)
    opened = vfl.simulate(job_of(vfl.DirectSum(), "open", **keys), two)
    np.testing.assert_allclose(weights(sealed), weights(opened), atol=TOLERANCE)
    assert sealed.metrics["accuracy"] > 0.5


def test_prediction_and_saved_parts_agree_with_the_weights(four_parties: list[vfl.Party], tmp_path: object) -> None:
    run = vfl.simulate(job_of(vfl.CipherSum(), vfl.Ckks()), four_parties)
    run.save(str(tmp_path))
    again = vfl.Run.load(str(tmp_path))
    tables = {party.name: party.X[:50] for party in four_parties}
    pairs = zip(tables.values(), run.parts.values(), strict=True)
    f = sum(p.scaling(t) @ p.theta[: t.shape[1]] for t, p in pairs)
    f = f + run.active.theta[-1]
    np.testing.assert_allclose(again.decision(tables), f, atol=TOLERANCE)
    np.testing.assert_allclose(again.predict_proba(tables)[:, 1], 1 / (1 + np.exp(-f[:, 0])), atol=TOLERANCE)
    assert (again.predict(tables) == (f[:, 0] > 0)).all()
    assert again.summary()["metrics"] == run.metrics


@pytest.mark.exact_outputs
@pytest.mark.parametrize(
    ("sums", "residual"),
    [
        *((sums, residual) for sums in SUM_KINDS for residual in TESTED_RESIDUALS[:2]),
        (SUM_KINDS[0], TESTED_RESIDUALS[2]),
    ],
    ids=str,
)
@pytest.mark.long
def test_curvature_steps_are_the_same_over_all_protocols(
    sums: SumProtocol, residual: Engine | str, four_parties: list[vfl.Party]
) -> None:
    def run(sums: SumProtocol, residual: Engine | str) -> vfl.Run:
        return vfl.simulate(job_of(sums, residual, vfl.BlockNewton(), batch_size="all", epochs=4), four_parties)

    protected, plain = run(sums, residual), run(vfl.DirectSum(), "open")
    np.testing.assert_allclose(weights(protected), weights(plain), atol=TOLERANCE)
    assert protected.metrics["auc"] > 0.99


@pytest.mark.parametrize(
    "sums", [protocol for protocol in TESTED_SUMS if protocol.hides_parts and "aillier" not in str(protocol)], ids=str
)
def test_no_round_of_many_is_hidden_by_the_mask_of_another(sums: SumProtocol) -> None:
    """Constant weights give the same outputs in each of 14 rounds; random bytes never repeat."""
    tables = [party.take(np.arange(40, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=4)]
    events: list[Event] = []
    optimizer = vfl.FedSGD(lr=1e-30)
    job = job_of(sums, "open", optimizer, batch_size="all", epochs=14)
    run = vfl.simulate(job, tables, observe=events.append)
    declared = run_declarations(job.family, job, run.roles)
    uniform = {item.message for item in declared if item.reveals.kind in ("uniform", "ciphertext")} | {MaskedSummand}
    sent = defaultdict[tuple[object, ...], list[bytes]](list)
    for event in events:
        if event.direction == "send" and type(event.message) in uniform:
            values = [getattr(event.message, name) for name in event.message.__struct_fields__]
            octets = [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]
            joined = b"".join(value for value in octets if isinstance(value, bytes))
            if len(joined) >= 64:  # shorter strings may repeat by chance
                sent[event.me, event.peer, event.subchannel, type(event.message)].append(joined)
    assert any(len(messages) >= 14 for messages in sent.values())
    assert all(len(set(messages)) == len(messages) for messages in sent.values())
