"""Declared disclosures of FDML and noise on the outputs of workers."""

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.counts import Disclosure
from securevfl.errors import ConfigError, LeakageError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.protocols.observations import OthersSumLearned
from securevfl.runtime.observer import Event, Observer
from tests.builders import disclosures_in_run, raises_code

SERVER_PARTY = vfl.Helper("server", "server")
NOISE = {"epsilon": 8, "delta": 1e-4, "clip": 2}


def fdml_parties(count: int = 3, *, server: bool = True) -> list[vfl.Party]:
    return [*vfl.datasets.breast_cancer(parties=count), *([SERVER_PARTY] if server else [])]


def fdml_job(
    *, tau: int = 4, shows: bool = True, stored: object = "masks", residual: object = None, **keys: object
) -> vfl.Job:
    defaults: dict[str, object] = {"batch_size": 64, "epochs": 4, "test_fraction": 0.25, "accepts": ("columns",)}
    return vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FDML(lr=0.3, tau=tau, shows_labels=shows, stored=stored),
        protocol=vfl.Protocol(residual=residual),  # type: ignore[arg-type]
        **(defaults | keys),  # type: ignore[arg-type]
    )


def columns(job: vfl.Job, parties: list[vfl.Party]) -> dict[tuple[str, tuple[str, ...]], int]:
    """Return how many numbers about one training row each learner receives, by learner and by the parties concerned."""
    disclosures: list[Disclosure] = disclosures_in_run(job, pooled_run_facts(job, parties).shape)
    return {
        (disclosure.learner, disclosure.about): disclosure.count
        for disclosure in disclosures
        if (disclosure.kind, disclosure.group) == ("columns", "training")
    }


def test_every_worker_that_pulls_is_counted() -> None:
    assert columns(fdml_job(tau=0), fdml_parties()) == {
        ("bank", ("shop", "telco")): 4,
        ("shop", ("bank", "telco")): 4,
        ("telco", ("bank", "shop")): 4,
    }
    apart = columns(fdml_job(tau=4), fdml_parties())
    assert {
        (one, (other,)) for one in ("bank", "shop", "telco") for other in ("bank", "shop", "telco") if one != other
    } < set(apart)
    assert columns(fdml_job(shows=False, residual="ckks"), fdml_parties(2)) == {("bank", ("shop",)): 4}
    opened = columns(fdml_job(shows=False, residual="open"), fdml_parties(2))
    assert opened == {("bank", ("shop",)): 4, ("shop", ("bank",)): 4}


def test_a_server_that_stores_plain_outputs_is_a_learner() -> None:
    open_job = fdml_job(stored="open", tau=0, accepts=())
    assert {about for learner, about in columns(open_job, fdml_parties()) if learner == "server"} == {
        ("bank",),
        ("shop",),
        ("telco",),
    }
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED") as refused:
        vfl.simulate(open_job.model_copy(update={"epochs": 30}), fdml_parties())
    assert set(refused.value.fields["leaks"]) == {"columns"}
    assert any(line.startswith("disclosure to server:") for line in str(refused.value).splitlines())
    assert not any(learner == "server" for learner, _ in columns(fdml_job(), fdml_parties()))


def test_without_a_server_workers_receive_all_outputs() -> None:
    counts = columns(fdml_job(stored="open"), fdml_parties(server=False))
    assert counts[("shop", ("telco",))] == 4
    assert ("shop", ("bank", "telco")) not in counts


def test_sent_labels_count_as_all_labels() -> None:
    training = fdml_job()
    disclosures = disclosures_in_run(training, pooled_run_facts(training, fdml_parties()).shape)
    assert {disclosure.learner: disclosure.share for disclosure in disclosures if disclosure.kind == "labels"} == {
        "shop": 1.0,
        "telco": 1.0,
    }


def test_the_sheet_states_coalitions_learners_and_noise() -> None:
    sheet = vfl.explain(fdml_job(stored={"name": "masks", "noise": NOISE}), fdml_parties())
    for phrase in (
        "the server and any worker that receives sums can together open",
        "the labels of all training rows, which the active party sends to all workers",
        "is the change of that worker's outputs",
        "no output and no sum",
        "epsilon 8 at delta 0.0001\n            for all 4 pushes of a row",
    ):
        assert phrase in sheet, phrase
    alone = vfl.explain(fdml_job(stored="open", residual="ckks", shows=False))
    assert "the server alone learns the forward outputs of every worker" in alone
    assert "server (server)" in alone
    assert "without a server" in vfl.explain(fdml_job(stored="open"), fdml_parties(server=False))


class Sums(Observer):
    def __init__(self) -> None:
        self.pulled: list[tuple[str, int, np.ndarray]] = []

    def __call__(self, event: Event) -> None:
        """Messages are not kept."""

    def note(self, me: str, fact: object) -> None:
        if isinstance(fact, OthersSumLearned):
            self.pulled.append((me, fact.index, fact.values))


def test_every_pulled_sum_has_noise_and_training_succeeds() -> None:
    pytest.importorskip("dp_accounting")
    noisy_job, clear = fdml_job(stored={"name": "masks", "noise": NOISE}, tau=0), fdml_job(tau=0)
    sigma = vfl.LocalNoise(**NOISE).sigma(4)  # type: ignore[arg-type]
    seen = []
    for variant in (noisy_job, clear):
        watch = Sums()
        auc = vfl.simulate(variant, fdml_parties(2), observe=watch).metrics["auc"]
        assert auc > 0.9
        seen.append(np.concatenate([values for me, _, values in watch.pulled if me == "bank"]))
    noisy, plain = seen
    assert plain[:20].std() < 0.1 * sigma, "the first sums are of weights near zero"
    assert noisy.std() > 0.8 * sigma


def test_costs_name_what_is_stored() -> None:
    run = vfl.simulate(fdml_job(epochs=1), fdml_parties(2))
    assert "masks/labels" in run.costs.table()


def test_noise_asks_for_rows_that_are_held_out() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        fdml_job(stored={"name": "masks", "noise": NOISE}, test_fraction=0.0)
