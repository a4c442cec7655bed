"""Values of a wrong type in a job are errors that name the option, whatever the model and the other options."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.consent.settle_job import settle_job
from securevfl.errors import ConfigError
from securevfl.models import MODELS
from securevfl.optim.defaults import EVALUATE_SAFE_STEPS_EVERY
from tests.builders import raises_code

OTHERS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "bins": {"prepare": {"bins": 10}},
    "class weights": {"weights": {"classes": "balanced"}},
    "open": {"protocol": "open"},
    "own schedule": {"optimizer": {"name": "block_descent"}, "batch_size": "all"},
}
KEYS = (
    *("epochs", "evaluate_every", "test_fraction", "seed", "split", "batch_size", "patience", "target", "exposure"),
    *("weights", "weights.max_weight", "weights.column", "prepare", "positive", "accepts", "reason_codes"),
    *("protocol", "optimizer", "optimizer.lr", "optimizer.early_stop"),
)
VALUES: dict[str, Any] = {
    "text": "many",
    "negative": -5,
    "fraction": -0.5,
    "not a number": math.nan,
    "infinite": math.inf,
    "huge": 1e300,
    "list": [[1], {}],
    "table": {"no such option": 1},
    "object": object(),
}


def with_value(keys: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return the keys of a job with a value at the path of a key."""
    outer, _, inner = path.partition(".")
    if not inner:
        return keys | {outer: value}
    table = keys.get(outer) or ({"name": "block_descent"} if outer == "optimizer" else {})
    return keys | {outer: table | {inner: value}}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("others", OTHERS)
def test_a_value_of_a_wrong_type_is_an_error_with_a_code(model: str, others: str) -> None:
    for key in KEYS:
        for value in VALUES.values():
            with suppress(ConfigError):  # which has a code; any other error fails the test
                vfl.Job(**with_value({"model": model} | OTHERS[others], key, value))


@pytest.mark.parametrize("model", ["logistic", "trees", "poisson"])
@pytest.mark.parametrize("value", ["many", None, [3], math.nan])
def test_the_message_names_the_number_of_epochs(model: str, value: object) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as caught:
        vfl.Job(model=model, epochs=value, prepare={"bins": 10})  # type: ignore[arg-type]
    assert "epochs" in str(caught.value)


@pytest.mark.parametrize("epochs", [1, 30, 39, 41, 60])
def test_class_weights_leave_evaluations_inside_a_training(epochs: int) -> None:
    bank, shop = vfl.datasets.loans(4000)
    rare = np.where((np.asarray(bank.y) == "late") & (np.arange(4000) % 20 == 0), "late", "on time")
    parties = [vfl.Party("bank", bank.X, rare, ids=bank.ids, columns=bank.columns), shop]
    settled = settle_job(vfl.Job(model="logistic", epochs=epochs, weights={"classes": "balanced"}), parties)
    assert settled.evaluate_every <= max(settled.epochs, EVALUATE_SAFE_STEPS_EVERY)
