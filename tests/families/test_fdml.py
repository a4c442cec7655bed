"""Training with FDML: equal to FedSGD if all workers advance in step, and bounded as in the paper if they do not."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import ConfigError, PartiesError
from securevfl.families.fdml.pull_server import PullObservation
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.observer import Event, Observer
from securevfl.runtime.party_threads import run_threads
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.session import take_part
from tests.builders import cancer_parties, raises_code

SERVER_PARTY = vfl.Helper("server", "server")
OPEN = vfl.Protocol()
SECONDS_OF_SLOW_PARTIES = [{}, {"bank": 60.0}, {"shop": 60.0, "telco": 7.0}, {"server": 100.0}]


def fdml_job(protocol: vfl.Protocol = OPEN, stored: str = "open", **options: Any) -> vfl.Job:
    fdml_options: dict[str, Any] = {"lr": 0.3, "tau": 4, "shows_labels": protocol.residual is None, "stored": stored}
    fdml_options |= {name: options.pop(name) for name in list(options) if name in vfl.FDML.model_fields}
    base = {"model": vfl.Logistic(l2=1e-3), "batch_size": 64, "epochs": 4, "test_fraction": 0.25, "seed": 1}
    return vfl.Job(**base | options, optimizer=vfl.FDML(**fdml_options), protocol=protocol, accepts=("columns", "rank"))


def weights(run: vfl.Run) -> np.ndarray:
    return np.concatenate([part.theta.ravel() for part in run.parts.values() if part.columns])


class Watch(Observer):
    def __init__(self) -> None:
        self.pulls: list[PullObservation] = []

    def __call__(self, event: Event) -> None:
        """Messages are not kept."""

    def note(self, me: str, fact: object) -> None:
        if isinstance(fact, PullObservation):
            self.pulls.append(fact)


# protocol, how the server stores payloads, whether there is a server, distance from FedSGD without encryption
IN_STEP = {
    "labels at one": (vfl.Protocol(residual="open"), "open", True, 1e-12),
    "labels at one, sealed": (vfl.Protocol(residual="ckks"), "open", True, 1e-5),
    "labels at all": (OPEN, "open", True, 1e-12),
    "masks": (vfl.Protocol(residual="open"), "masks", True, 1e-5),
    "no server": (OPEN, "open", False, 1e-12),
}


@pytest.mark.exact_outputs
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("protocol", "stored", "server", "near"), IN_STEP.values(), ids=IN_STEP)
def test_in_step_it_is_fedsgd(protocol: vfl.Protocol, stored: str, server: bool, near: float, count: int) -> None:
    chosen_job = fdml_job(protocol, stored, tau=0, epochs=2)
    tables = [*cancer_parties(count), *([SERVER_PARTY] if server else [])]
    theta = weights(vfl.simulate(chosen_job, tables))
    base = chosen_job.model_copy(update={"optimizer": vfl.FedSGD(lr=0.3), "protocol": vfl.Protocol(residual="open")})
    assert np.abs(theta - weights(vfl.simulate(base, cancer_parties(count)))).max() < near


@pytest.mark.parametrize("rule", [vfl.Momentum(), vfl.AdaGrad()])
def test_steps_go_by_the_rule_named(rule: Any) -> None:
    chosen_job = fdml_job(tau=0, epochs=2, rule=rule, lr=0.1)
    base = chosen_job.model_copy(
        update={"optimizer": vfl.FedSGD(lr=0.1, rule=rule), "protocol": vfl.Protocol(residual="open")}
    )
    run = vfl.simulate(chosen_job, [*cancer_parties(3), SERVER_PARTY])
    assert np.abs(weights(run) - weights(vfl.simulate(base, cancer_parties(3)))).max() < 1e-10
    assert run.costs.algorithm == f"FDML tau=0 {rule.name}"


@pytest.mark.parametrize(
    ("protocol", "stored"),
    [
        pytest.param(OPEN, "open", id="all"),
        pytest.param(vfl.Protocol(residual="open"), "masks", id="one", marks=pytest.mark.slow),
    ],
)
def test_the_model_does_not_depend_on_timing(protocol: vfl.Protocol, stored: str) -> None:
    """With shrinking steps, any slow worker changes scores by at most 0.03 of their deviation; 0.01 is usual."""
    tables = [*cancer_parties(3), SERVER_PARTY]
    options = {"epochs": 30, "decay": "sqrt_t", "lr": 0.5, "batch_size": 32, "model": vfl.Logistic(l2=1e-2)}
    new = {party.name: party.X for party in cancer_parties(3)}
    expected = vfl.simulate(fdml_job(protocol, stored, tau=0, **options), tables).decision(new)
    for slowed in SECONDS_OF_SLOW_PARTIES:
        f = vfl.simulate(fdml_job(protocol, stored, tau=8, **options), tables, slowed=slowed).decision(new)
        assert np.sqrt(((f - expected) ** 2).mean()) < 0.03 * expected.std()


@pytest.mark.slow
def test_regret_falls_as_one_by_the_root_of_the_iterations() -> None:
    """Proposition 1: if columns barely predict the labels, regret falls as T^(-1/2)."""
    generator = np.random.default_rng(3)
    n, epochs = 800, 64
    X = generator.normal(size=(n, 8))
    y = generator.random(n) < 1 / (1 + np.exp(-X @ generator.normal(size=8) / 4))
    tables = [
        vfl.Party("bank", X[:, :3], y, aligned=True),
        vfl.Party("shop", X[:, 3:6], aligned=True),
        vfl.Party("telco", X[:, 6:], aligned=True),
    ]
    chosen_job = fdml_job(
        model=vfl.Logistic(), batch_size=8, epochs=epochs, test_fraction=0.0, tau=8, decay="sqrt_t", lr=1.0
    )
    run = vfl.simulate(chosen_job, [*tables, SERVER_PARTY], slowed={"shop": 40.0})
    losses = np.array([record["batch_loss"] for record in run.history])
    best = vfl.simulate(
        vfl.Job(model=vfl.Logistic(), protocol=vfl.Protocol(residual="open"), epochs=60, accepts=("columns",)), tables
    ).metrics["loss"]
    T = np.array([100 * 2**k for k in range(7)])
    regret = np.array([losses[:iterations].mean() for iterations in T]) - best
    slope = np.polyfit(np.log(T), np.log(regret), 1)[0]
    assert (regret > 0).all()
    assert -0.75 < slope < -0.4, slope


@pytest.mark.parametrize("residual", [None, "open"])
def test_neural_parties(residual: str | None) -> None:
    pytest.importorskip("torch")
    chosen_job = fdml_job(vfl.Protocol(residual=residual), "masks", model=vfl.Neural(), epochs=8)
    run = vfl.simulate(chosen_job, [*cancer_parties(3), SERVER_PARTY])
    assert run.metrics["auc"] > 0.98
    new = {party.name: party.X[:20] for party in cancer_parties(3)}
    assert run.predict(new).shape == (20,)


def test_a_slow_party_costs_less_where_others_need_not_wait() -> None:
    def seconds(tau: int) -> float:
        run = vfl.simulate(fdml_job(tau=tau, epochs=8), [*cancer_parties(3), SERVER_PARTY], slowed={"shop": 4.0})
        assert run.metrics["auc"] > 0.99
        return run.costs.training

    assert seconds(8) < 0.6 * seconds(0)


@pytest.mark.parametrize(
    ("residual", "server"), [(None, True), pytest.param(None, False, marks=pytest.mark.slow), ("open", True)]
)
def test_each_goes_on_where_it_was(residual: str | None, server: bool, tmp_path: Path) -> None:
    """A restarted server has no payloads, and receives all pushed ones before it first answers."""
    chosen_job = fdml_job(vfl.Protocol(residual=residual), tau=3, batch_size=32, epochs=12)
    tables = [*cancer_parties(3), *([SERVER_PARTY] if server else [])]
    states = {name: Checkpoints(tmp_path / name, name, every=1) for name in [party.name for party in tables]}

    def cut(done: int, of: int) -> None:
        if done == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.simulate(chosen_job, tables, checkpoints=states, on_round=cut, slowed={"shop": 30.0})
    watch, begun = Watch(), {}
    rounds: list[int] = []
    run = vfl.simulate(
        chosen_job, tables, checkpoints=states, observe=watch, on_round=lambda done, _: rounds.append(done)
    )
    for pull in watch.pulls:
        begun.setdefault(pull.worker, pull.iteration)
        assert min(pull.versions.values()) >= 0
    assert rounds == list(range(60, 12 * 14 + 1))
    assert begun["bank"] == 59  # its 60th iteration was not stored
    assert min(begun.values()) > 40
    if residual:
        assert set(begun.values()) == {59}
    uninterrupted = vfl.simulate(chosen_job, tables)
    assert run.metrics["auc"] > 0.99
    assert np.corrcoef(weights(run), weights(uninterrupted))[0, 1] > 0.99


def test_joint_evaluations_and_a_target_stop_everyone() -> None:
    chosen_job = fdml_job(tau=5, epochs=40, target=vfl.Target(metric="auc", value=0.98), evaluate_every=3)
    run = vfl.simulate(chosen_job, [*cancer_parties(3), SERVER_PARTY], slowed={"telco": 50.0})
    assert run.metrics["auc"] >= 0.98
    assert run.active.rounds < 40 * 7
    assert run.active.rounds % 3 == 0


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"shows_labels": False}, "protocol.residual"),
        ({"shows_labels": True, "protocol": vfl.Protocol(residual="open")}, "protocol.residual"),
        ({"reshuffle": True}, "reshuffle"),
        ({"max_label_auc": 0.7}, "max_label_auc"),
        ({"model": vfl.Neural(joint="top")}, "joint"),
        ({"tau": -1}, "tau"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], option: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as refused:
        fdml_job(**changes)
    assert option in str(refused.value)


def test_who_must_be_there() -> None:
    with raises_code(PartiesError, "SVFL-PARTIES-ROLE"):
        vfl.simulate(fdml_job(vfl.Protocol(residual="open")), cancer_parties(3))
    with raises_code(PartiesError, "SVFL-PARTIES-ROLE"):
        vfl.simulate(fdml_job(stored="masks"), cancer_parties(3))
    with raises_code(PartiesError, "SVFL-PARTIES-COUNT"):
        vfl.simulate(fdml_job(), [*cancer_parties(3), SERVER_PARTY, vfl.Helper("other", "server")])
    with raises_code(PartiesError, "SVFL-PARTIES-COUNT"):
        vfl.simulate(fdml_job(), [cancer_parties(3)[0], SERVER_PARTY])
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="slowed", name="nobody"):
        vfl.simulate(fdml_job(), [*cancer_parties(3), SERVER_PARTY], slowed={"nobody": 2.0})


def messages_of(sheet: str, party: str) -> str:
    """Return the part of a sheet's list of messages that begins with this party."""
    return " ".join(str(sheet).split("\nMessages\n")[1].split(party)[1].split())


def test_its_sheet_says_who_sees_what() -> None:
    masks_sheet = vfl.explain(fdml_job(stored="masks"), [*cancer_parties(3), SERVER_PARTY])
    assert "TrainingLabels from active: plain: the label of every training row" in masks_sheet
    assert "Push from passive: uniform" in messages_of(masks_sheet, "server (server)")
    ckks_sheet = vfl.explain(fdml_job(vfl.Protocol(residual="ckks")), [*cancer_parties(3), SERVER_PARTY])
    assert "TrainingLabels" not in ckks_sheet
    assert "PullReply from server: public" in messages_of(ckks_sheet, "shop (passive)").split("telco")[0]
    peers = vfl.explain(fdml_job(), cancer_parties(3))
    assert "open payloads at all workers" in peers
    assert "Push from active: plain" in messages_of(peers, "shop (passive)")


def test_each_has_the_sheet_alone_that_it_is_shown_when_all_meet() -> None:
    """This includes the server, which has no table."""
    chosen_job, tables = fdml_job(vfl.Protocol(residual="ckks")), [*cancer_parties(3), SERVER_PARTY]
    columns = {party.name: len(party.columns) for party in tables}
    sheets: dict[str, str] = {}

    def play(party: vfl.Party, channel: Channel) -> Any:
        return take_part(chosen_job, party, channel, parties=[*columns], consent=partial(sheets.setdefault, party.name))

    run_threads({party.name: partial(play, party) for party in tables}, WallClock, timeout=30)
    for party in tables:
        others = {name: size for name, size in columns.items() if name != party.name}
        assert vfl.explain(chosen_job, [party], others=others) == sheets[party.name]
    assert sheets["server"].startswith("Consent sheet for server, without a table")
