"""Jobs that are derived from a job keep each of its fields, or the field is on the list of what the derivation sets.

Every field of the job, of its nested tables and of its protocol has a value other than its default, so that a field
that a derivation forgets is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.report import _shortened
from securevfl.base.config import flatten
from securevfl.consent.settle_job import settle_job
from securevfl.job import stratified
from securevfl.organisations.toml_writer import to_toml
from securevfl.training.comparison import compared_jobs
from securevfl.training.tuning_grid import alternative_jobs, final_job, tuned_job
from tests.builders import parties_of, random_parties


def without(keys: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key not in names}


KEYS: dict[str, Any] = {
    "model": {"name": "logistic"},
    "protocol": {
        "shares": {
            "partner": "shop", "table_bits": 5, "step": 0.25, "clip": 16.0, "chunk": 3, "metrics_step": 0.125,
            "metrics_range": 8.0, "score_step": 0.25, "score_bits": 7, "open_weights": ("bank",), "scores_to": "shop",
            "scores": "exact", "metrics": "loss",
        }
    },
    "optimizer": {"name": "block_descent", "lr": 1.2, "ridge": 0.03, "warm_up": 2},
    "batch_size": "all",
    "epochs": 7,
    "seed": 5,
    "test_fraction": 0.3,
    "split": 9,
    "evaluate_every": 3,
    "target": {"metric": "loss", "value": 0.2},
    "patience": {"metric": "loss", "evaluations": 2, "tolerance": 0.003},
    "prepare": {"drop": ("x",), "missing": "fill", "texts": "refuse", "rare": 0.01, "tails": "keep", "clip": 0.02},
    "weights": {"classes": {"0": 1.0, "1": 3.0}, "max_weight": 4.0},
    "positive": "1",
    "scale": "robust",
    "reason_codes": 2,
    "accepts": ("small_metrics",),
}  # fmt: skip
ELSEWHERE = {
    "exposure": "models of counts", "reshuffle": "not on shares", "max_label_auc": "not on shares",
    "model.l2": "needs the scale standard on shares", "optimizer.early_stop": "sets its own evaluations",
    "model.pairs": "opens no weights",
}  # fmt: skip
"""Fields that a job on shares cannot have next to the others, and why; the jobs below have them."""
OPEN_KEYS: dict[str, Any] = without(KEYS, "scale", "target", "patience") | {
    "model": {"name": "logistic", "l2": 0.02},
    "protocol": {"sum": "direct", "residual": "open"},
    "optimizer": {"name": "fedbcd", "lr": 0.3, "local_steps": 2},
    "batch_size": 50,
    "reshuffle": True,
    "max_label_auc": 0.9,
    "weights": None,
}  # fmt: skip
COMPARED = {
    *("patience", "evaluate_every", "target", "reason_codes", "optimizer", "epochs", "batch_size"),
    *(
        "protocol.shares.scores",
        "protocol.shares.score_bits",
        "protocol.shares.scores_to",
        "protocol.shares.open_weights",
    ),
}
"""Fields of compared jobs: each model has its own schedule, is measured once, and discloses no score and no weight."""


TREES = {
    "name": "trees", "trees": 3, "depth": 2, "bins": 5, "linear": 0.1, "cosines": 2, "ridge": 0.5,
    "boosted_score": False,
}  # fmt: skip
TREE_KEYS: dict[str, Any] = without(KEYS, "reason_codes", "scale") | {
    "model": TREES,
    "optimizer": {"name": "block_descent", "lr": 1.2, "warm_up": 2},
}


def fields(job: vfl.Job) -> dict[str, str]:
    return flatten(job.to_dict())


def is_listed(key: str, listed: set[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in listed)


def test_the_full_job_sets_every_field_off_its_default() -> None:
    job = vfl.Job(**KEYS)
    assert set(vfl.Job.model_fields) == KEYS.keys() | {key for key in ELSEWHERE if "." not in key}
    plain = vfl.Job(model="logistic", protocol="shares")
    for key, value in fields(job).items():
        if key not in ("model.name", "optimizer.name", "batch_size") and key in fields(plain):
            known = key.endswith((".name", ".library", "protocol.sum", "precision", "momentum", "decay"))
            assert known or value != fields(plain)[key] or key in ELSEWHERE, key
    assert set(OPEN_KEYS) | {"exposure", "scale", "target", "patience"} == set(vfl.Job.model_fields)
    tree_fields = set(vfl.Trees.model_fields) - set(vfl.GeneralLinear.model_fields)
    assert TREES.keys() == tree_fields - {"pairs", "loss_name"} | {
        "name"
    }  # pairs open no weights; the labels choose the loss
    assert all(getattr(vfl.Trees(), key) != value for key, value in TREES.items() if key != "name")


@pytest.mark.parametrize("name", ["logistic", "bins", "trees"])
def test_compared_jobs_keep_all_that_is_not_listed(name: str) -> None:
    keys = KEYS | ({"prepare": {**KEYS["prepare"], "clip": None, "bins": 7}} if name == "bins" else {})
    derived = fields(compared_jobs(vfl.Job(**keys))[name])
    listed = COMPARED | ({"model", "scale"} if name == "trees" else set())
    for key, value in fields(vfl.Job(**keys)).items():
        if not is_listed(key, listed):
            assert derived.get(key) == value, key
    assert "patience.metric" not in derived
    assert derived["evaluate_every"] == "0"
    assert derived["protocol.shares.scores"] == "none"
    assert derived.get("protocol.shares.open_weights", "") in ("", "none", "[]")
    trees = vfl.Trees(trees=3, depth=2, boosted_score=False)
    of_trees = compared_jobs(vfl.Job(model=trees, protocol="shares"))
    assert of_trees["trees"].model == trees
    assert of_trees["bins"].prepare.bins == 10


EARLY_STOP_KEYS = without(KEYS, "target", "patience", "evaluate_every") | {
    "optimizer": {"name": "block_descent", "early_stop": 0.01}
}
PAIR_KEYS = without(KEYS, "reason_codes", "optimizer", "batch_size") | {
    "model": {"name": "logistic", "pairs": 4},
    "protocol": "shares",
}


def shortened(job: vfl.Job) -> vfl.Job:
    return _shortened(job, random_parties(2, rows=200))[0]


DERIVATIONS: dict[str, tuple[Callable[[vfl.Job], vfl.Job], set[str]]] = {
    "plain data": (lambda job: vfl.Job.from_dict(job.to_dict()), set()),
    "stratified": (lambda job: stratified(job, random_parties(2, rows=200)[0]), {"split"}),
    "settled": (lambda job: settle_job(job, random_parties(2, rows=200)), set()),
    "audited": (shortened, {"epochs", "target", "patience", "optimizer.early_stop"}),
    "ideal": (lambda job: job.family.ideal_job(job), {"protocol", "max_label_auc"}),
}


@pytest.mark.parametrize("kind", DERIVATIONS)
@pytest.mark.parametrize(
    "keys",
    [KEYS, OPEN_KEYS, EARLY_STOP_KEYS, PAIR_KEYS, TREE_KEYS],
    ids=["shares", "open", "early stop", "pairs", "trees"],
)
def test_every_other_derivation_keeps_all_that_is_not_listed(kind: str, keys: dict[str, Any]) -> None:
    job = vfl.Job(**keys)
    derive, listed = DERIVATIONS[kind]
    derived = fields(derive(job))
    for key, value in fields(job).items():
        if not is_listed(key, listed):
            assert derived.get(key) == value, key
    assert set(derived) <= set(fields(job)) | {"protocol.residual.name"}


DEFAULT_SCHEDULE = ("optimizer", "batch_size", "epochs", "evaluate_every")
CHOICES: dict[str, tuple[dict[str, Any], np.ndarray, set[str]]] = {
    "trees of several classes": (
        without(TREE_KEYS, "positive") | {"weights": {"classes": {"0": 1.0, "1": 2.0, "2": 3.0}, "max_weight": 4.0}},
        np.arange(240) % 3,
        {"model.loss"},
    ),
    "iterations for a rare class": (
        without(KEYS, "weights", *DEFAULT_SCHEDULE),
        np.arange(2400) % 240 == 0,
        {"epochs", "evaluate_every"},
    ),
    "room of class weights": (
        without(KEYS, *DEFAULT_SCHEDULE) | {"weights": {"classes": "balanced"}},
        np.arange(480) % 48 == 0,
        {"weights.max_weight", "epochs", "evaluate_every"},
    ),
    "room in a schedule of the job": (
        KEYS | {"weights": {"classes": "balanced"}},
        np.arange(480) % 48 == 0,
        {"weights.max_weight"},
    ),
    "epochs without a leak": (OPEN_KEYS | {"epochs": 0}, np.arange(240) % 2, {"epochs"}),
}
"""Choices that a job leaves to the tables: the job, the labels, and the fields that the choice sets."""


@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_by_the_tables_sets_its_fields_alone(choice: str) -> None:
    keys, y, chosen = CHOICES[choice]
    generator, job = np.random.default_rng(6), vfl.Job(**keys)
    parties = parties_of(generator.normal(size=(2, len(y), 3)), y.astype(int))
    before, after = fields(job), fields(settle_job(job, parties))
    assert {key for key in before | after if before.get(key) != after.get(key)} == chosen


SEARCH_KEYS = without(KEYS, "target", "patience")
"""A search fixes the number of epochs, so its jobs do not stop early."""
TUNED = {"evaluate_every", "epochs", "optimizer", "batch_size"}
"""Fields that a search sets: its jobs are measured once, and take safe steps."""
SILENT = {f"protocol.shares.{key}" for key in ("metrics", "scores", "score_bits", "scores_to", "open_weights")}
SEARCHED: dict[str, tuple[Callable[[vfl.Job], list[vfl.Job]], set[str]]] = {
    "tuned": (lambda job: [tuned_job(job)], TUNED),
    "alternatives": (lambda job: [*alternative_jobs(job, GRID).values()], TUNED | SILENT | {"reason_codes"}),
    "finals": (
        lambda job: [final_job(tuned_job(job), item) for item in alternative_jobs(job, GRID).values()],
        TUNED,
    ),
    "alone": (lambda job: [*alternative_jobs(job, GRID, alone=True).values()], SILENT | {"epochs", "reason_codes"}),
}
GRID = {"epochs": (8, 9)}


SEARCHED_TREE_KEYS = without(TREE_KEYS, "target", "patience")


@pytest.mark.parametrize(
    "keys", [SEARCH_KEYS, EARLY_STOP_KEYS, SEARCHED_TREE_KEYS], ids=["fixed", "early stop", "trees"]
)
@pytest.mark.parametrize("kind", SEARCHED)
def test_jobs_of_a_search_keep_all_that_is_not_listed(kind: str, keys: dict[str, Any]) -> None:
    job = vfl.Job(**keys)
    derive, listed = SEARCHED[kind]
    for derived in map(fields, derive(job)):
        for key, value in fields(job).items():
            if not is_listed(key, listed):
                assert derived.get(key) == value, key
        assert set(derived) <= set(fields(job)) | {"protocol.residual.name"}


@pytest.mark.parametrize("keys", [KEYS, OPEN_KEYS], ids=["shares", "open"])
def test_a_job_file_and_the_digest_have_every_field(keys: dict[str, Any], tmp_path: Path) -> None:
    """The file reads back as the job, and two jobs that differ in any one field have different digests."""
    job, path = vfl.Job(**keys), tmp_path / "job.toml"
    path.write_text(to_toml(job.to_dict()))
    assert vfl.Job.load(path) == job
    digests = {job.digest}
    for field in sorted(keys.keys() - {"model", "protocol", "optimizer"}):
        other = {"epochs": 8, "batch_size": 60, "evaluate_every": 4, "seed": 6, "split": 10, "test_fraction": 0.4}
        default = {key: value for key, value in keys.items() if key != field}
        if field in other:
            default[field] = other[field]
        try:
            changed = vfl.Job(**default)
        except vfl.errors.ConfigError:
            continue
        if changed.to_dict() != job.to_dict():
            digests.add(changed.digest)
    assert len(digests) >= len(keys) - 5


def test_a_split_is_the_most_even_of_all_that_are_tried() -> None:
    """Every split, by a loop: chi-squared distances of the held-out classes, with one class of a few rows."""
    generator = np.random.default_rng(2)
    y = (generator.random(160) < 0.06).astype(int)
    party = vfl.Party("bank", generator.normal(size=(160, 2)), y, ids=range(160))
    job = vfl.Job(model="logistic", protocol="open", optimizer={"name": "fedbcd", "lr": 0.1}, test_fraction=0.25)
    distances = []
    for split in range(256):
        test = vfl.Job.from_dict(job.to_dict() | {"split": split}).schedule(party.register).test
        distance = 0.0
        for label in (0, 1):
            expected = (y == label).sum() * len(test) / len(y)
            distance += ((y[test] == label).sum() - expected) ** 2 / expected
        distances.append(distance)
    assert stratified(job, party).split == int(np.argmin(distances))
