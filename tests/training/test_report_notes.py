"""Statements of a report: figures of each class, metrics that are not measured, and errors because of rounding."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import labels_for, parties_of, random_blocks
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

import securevfl as vfl
from securevfl.data.party import register_of
from securevfl.errors import DataNotice
from securevfl.families.output_rounding import output_step
from securevfl.training.model_part import ModelPart

ACCEPTED = ["columns", "rank", "label_auc", "fresh_equations"]
BLOCKS = random_blocks(2, 1600, 3, seed=5)


def trained(job: vfl.Job, parties: list[vfl.Party]) -> vfl.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        return vfl.simulate(job, parties)


def held_out_scores(run: vfl.Run, job: vfl.Job, parties: list[vfl.Party]) -> tuple[np.ndarray, np.ndarray]:
    """Return exact outputs and labels of the held-out rows, from the weights of all parties."""
    rows = job.schedule(register_of(parties)).test
    scaled = {party.name: run.parts[party.name].scaling(np.asarray(party.X, float)[rows]) for party in parties}
    f = sum(X @ run.parts[name].theta[: X.shape[1]] for name, X in scaled.items())
    intercept = run.active.theta[len(run.active.features) :].sum(axis=0)
    return np.asarray(f) + intercept, parties[0].labels[rows]


@pytest.mark.parametrize("protocol", ["open", "shares"])
def test_each_class_has_figures_that_scikit_learn_confirms(protocol: str, tmp_path: Path) -> None:
    parties = parties_of(BLOCKS, labels_for(BLOCKS, 3), ids=range(1600))
    keys: dict[str, Any] = {"protocol": protocol, "accepts": ACCEPTED} if protocol == "open" else {}
    if protocol == "shares":
        keys = {"protocol": {"shares": {"open_weights": ["bank", "shop"]}}, "accepts": ["rank"]}
    job = vfl.Job(model=vfl.OneVsRest(), test_fraction=0.25, **keys)
    run = trained(job, parties)
    f, y = held_out_scores(run, job, parties)
    scores = job.model.loss.proba(f) if protocol == "open" else f
    assert list(run.by_class) == ["0", "1", "2"]
    for k, figures in enumerate(run.by_class.values()):
        assert figures["share"] == pytest.approx((y == k).mean())
        assert abs(figures["auc"] - roc_auc_score(y == k, scores[:, k])) <= figures["auc_std_error"] / 2
        assert abs(figures["pr_auc"] - average_precision_score(y == k, scores[:, k])) <= 0.03
    precision, recall, *_ = precision_recall_fscore_support(y, scores.argmax(axis=1))
    if protocol == "open":
        assert [figures["precision"] for figures in run.by_class.values()] == pytest.approx(list(precision))
        assert [figures["recall"] for figures in run.by_class.values()] == pytest.approx(list(recall))
        assert run.notes == []
    else:
        assert any("precision and recall are not measured on shares for several classes" in note for note in run.notes)
    run.active.save(tmp_path / "bank.json")
    loaded = ModelPart.load(tmp_path / "bank.json")
    assert (loaded.by_class, loaded.notes) == (run.by_class, run.notes)
    run.report(tmp_path / "page.html")
    assert "Each class against the others" in (tmp_path / "page.html").read_text()


def test_rounding_is_stated_with_the_error_of_each_metric() -> None:
    parties = parties_of(BLOCKS, labels_for(BLOCKS, 2), ids=range(1600))
    distances = []
    for protocol in ("open", "ckks"):
        job = vfl.Job(model="logistic", test_fraction=0.25, protocol=protocol, accepts=ACCEPTED)
        run = trained(job, parties)
        f, y = held_out_scores(run, job, parties)
        distances.append(abs(run.metrics["auc"] - roc_auc_score(y, f)))
        notes = [note for note in run.notes if "round their outputs at random" in note]
        assert len(notes) == (protocol == "ckks")
    assert distances[0] <= 1e-9
    stated = dict(item.split(" ") for item in notes[0].rpartition("about: ")[2].split(", "))
    # the rounding error of one output is triangular in the mean over rows; 200 draws state its effect to 5 %
    step, draw = output_step(len(job.schedule(register_of(parties)).train)), np.random.default_rng(0)
    moved = [roc_auc_score(y, f.ravel() + draw.triangular(-step, 0, step, len(f))) for _ in range(200)]
    error = np.sqrt(np.mean((np.array(moved) - roc_auc_score(y, f)) ** 2))
    assert distances[1] <= 6.6 * error
    assert error / 5 < float(stated["auc"]) < 5 * error  # one digit, from eight draws with a fixed seed


def test_weights_are_the_reason_of_unweighted_metrics() -> None:
    y = labels_for(BLOCKS, 2)
    weights = np.random.default_rng(4).uniform(0.5, 2, len(y))
    bank = vfl.Party("bank", np.column_stack([BLOCKS[0], weights]), y, columns=[*"abc", "w"], ids=range(len(y)))
    parties = [bank, vfl.Party("shop", BLOCKS[1], ids=range(len(y)))]
    run = trained(vfl.Job(model="logistic", weights={"column": "w"}), parties)
    assert any("count every row once, although rows have weights" in note for note in run.notes)
    (note,) = trained(vfl.Job(model="logistic"), parties).notes
    assert note.startswith("auc is computed from scores that are rounded to 128 levels")


@pytest.mark.parametrize(("classes", "model"), [(2, "logistic"), (3, "one_vs_rest")])
def test_the_effect_of_rounding_on_the_auc_is_stated(classes: int, model: str) -> None:
    parties = parties_of(BLOCKS, labels_for(BLOCKS, classes), ids=range(1600))
    notes = trained(vfl.Job(model=model), parties).notes
    (note,) = [note for note in notes if note.startswith("auc is computed")]
    change, correction = note.split("changes it by ")[1].split("; ")
    assert change == "less than 0.0001" or abs(float(change.removeprefix("about "))) <= 0.0015
    assert correction == f"the reported AUC is {'' if classes == 2 else 'not '}corrected for this"


def test_too_few_held_out_rows_are_stated_in_the_report(tmp_path: Path) -> None:
    blocks = random_blocks(2, 60, 2, seed=1)
    parties = parties_of(blocks, labels_for(blocks, 2), ids=range(60))
    run = trained(vfl.Job(model="logistic", test_fraction=0.05, accepts=["small_metrics"]), parties)
    assert run.metrics == {}
    assert any(note.startswith("metrics need at least 20 rows and there are 3") for note in run.notes)
    run.report(tmp_path / "page.html")
    assert "Metrics need at least 20 rows" in (tmp_path / "page.html").read_text()
