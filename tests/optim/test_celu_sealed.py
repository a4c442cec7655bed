"""CELU-VFL with sealed residuals: the model of the open run, and the numbers of products and openings."""

from collections import Counter

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.errors import LeakageError
from securevfl.optim.workset import Workset
from securevfl.protocols.residuals import sealed_residual
from securevfl.runtime.observer import Event
from tests.small_keys import SMALL

R, W, ROUNDS = 3, 2, 12


def sealed_celu_parties(count: int = 2, rows: int = 240) -> list[vfl.Party]:
    return [party.take(np.arange(rows, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=count)]


def sealed_celu_job(residual: object, model: object = None, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": model or vfl.Logistic(l2=0.01), "batch_size": 60, "epochs": 3}
    optimizer = vfl.CeluVFL(lr=0.1, R=R, W=W, xi=keys.pop("xi", None), rule=vfl.AdaGrad())
    defaults |= {"optimizer": optimizer, "protocol": vfl.Protocol(residual=residual)}
    return vfl.Job(**(defaults | {"accepts": ["columns", "rank", "fresh_equations"]} | keys))


EVERY_RUN = {("logistic", 60.0, 2), ("logistic", None, 3), ("neural", None, 2), ("neural", 60.0, 3)}
"""Each model with each number of parties and each way to weigh stored rows; `make soak` runs all combinations."""


@pytest.mark.exact_outputs
@pytest.mark.parametrize(
    ("model", "xi", "count"),
    [
        pytest.param(model, xi, count, marks=[pytest.mark.slow] * ((model.name, xi, count) not in EVERY_RUN))
        for model in (vfl.Logistic(l2=0.01), vfl.Neural())
        for xi in (None, 60.0)
        for count in (2, 3)
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_ckks_gives_the_open_model(model: vfl.Logistic, xi: float | None, count: int) -> None:
    data = sealed_celu_parties(count)
    clear, sealed = (vfl.simulate(sealed_celu_job(residual, model, xi=xi), data) for residual in ("open", "ckks"))
    for name in clear.parts:
        np.testing.assert_allclose(sealed.parts[name].theta, clear.parts[name].theta, atol=1e-4)
    assert sealed.metrics["auc"] == pytest.approx(clear.metrics["auc"], abs=1e-3)


@pytest.mark.exact_outputs
def test_paillier_gives_the_open_model() -> None:
    data = sealed_celu_parties(rows=80)
    keys = {"xi": 60.0, "batch_size": 40, "epochs": 2}
    clear, sealed = (vfl.simulate(sealed_celu_job(residual, **keys), data) for residual in ("open", SMALL))
    for name in clear.parts:
        # fixed-point numbers, over four batches of local steps: 2e-5 at this start
        np.testing.assert_allclose(sealed.parts[name].theta, clear.parts[name].theta, atol=5e-5)


def counted(monkeypatch: pytest.MonkeyPatch, job: vfl.Job) -> tuple[int, Counter[str]]:
    """Return the number of products that shop computes in a run, and its messages by class."""
    products, kinds = Counter[str](), Counter[str]()
    product_of = sealed_residual.product_of

    def count(*arguments: object) -> object:
        products["made"] += 1
        return product_of(*arguments)  # type: ignore[arg-type]

    def observe(event: Event) -> None:
        if event.direction == "send" and event.me == "shop":
            kinds[type(event.message).__name__] += 1

    with monkeypatch.context() as patch:
        patch.setattr(sealed_residual, "product_of", count)
        vfl.simulate(job, sealed_celu_parties(), observe=observe)
    return products["made"], kinds


def test_a_linear_party_makes_one_product_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    products, kinds = counted(monkeypatch, sealed_celu_job("ckks"))
    assert products == kinds["BlindedProduct"] == ROUNDS


def test_a_network_makes_one_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    products, kinds = counted(monkeypatch, sealed_celu_job("ckks", vfl.Neural()))
    table, steps = Workset[int](W, R), 0
    for t, batch in enumerate(sealed_celu_job("open").schedule(len(sealed_celu_parties()[0])).iterations()):
        steps += 1 + sum(table.sample() is not None for _ in range(R - 1))
        table.put(batch.index, t, t)
    assert products == kinds["BlindedProduct"] == steps


def test_products_follow_new_row_weights_but_openings_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some, none = (
        counted(monkeypatch, sealed_celu_job("ckks", xi=60.0)),
        counted(monkeypatch, sealed_celu_job("ckks", vfl.Neural(), xi=60.0)),
    )
    assert some[1] == none[1]
    assert some[0] < some[1]["BlindedProduct"] == none[0]
    still = counted(monkeypatch, sealed_celu_job("ckks", xi=60.0, epochs=3, model=vfl.Logistic(l2=50.0)))
    assert still[1] == some[1]


def test_leak_checks_count_every_gradient_that_is_opened() -> None:
    data = sealed_celu_parties()
    linear, weighed = (sealed_celu_job("ckks", xi=xi, accepts=["columns"]) for xi in (None, 60.0))
    assert linear.equations == 1
    assert weighed.equations == 3 * R
    assert vfl.simulate(linear, data).costs.rounds == ROUNDS
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        vfl.simulate(weighed, data)
    sheet = vfl.explain(sealed_celu_job("ckks", xi=60.0), data)
    assert f"different in each of {3 * R} local steps of a run because rows get new weights" in sheet
    assert "accepted: disclosure to shop: rows are weighted again" in sheet
    assert "the same 4 batches every epoch" in vfl.explain(linear, data)


@pytest.mark.parametrize("W", [1, 2, 5])
@pytest.mark.parametrize(("model", "xi"), [(vfl.Logistic(), 60.0), (vfl.Neural(), None), (vfl.Neural(), 60.0)])
def test_longer_runs_open_no_less(model: vfl.Logistic, xi: float | None, W: int) -> None:
    """More uses of an exchange, or more batches, open no fewer products, also beyond the exact count."""
    for batches in (range(11), range(12)):
        counts = [vfl.CeluVFL(lr=0.1, R=R, W=W, xi=xi).count_openings(model, batches) for R in (2, 5, 10_000)]
        assert counts == sorted(counts)
        assert counts[-1] <= 10_000 * len(batches)
