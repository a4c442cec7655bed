"""A default depends on its key and the model; naming another key of a section, or a section alone, changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

import securevfl as vfl
from securevfl.data.preparation import Preparation
from securevfl.job import Job
from securevfl.protocols.shares.shares_options import Shares

MODEL_NAMES = ("logistic", "square", "smooth_hinge", "one_vs_rest", "huber", "quantile", "trees")
LOG_LINKS = ("poisson", "gamma", "tweedie", "negative_binomial")
ALL_MODEL_NAMES = [*MODEL_NAMES, *LOG_LINKS]
NAMED = [key for key in Job.model_fields if key not in ("model", "optimizer")]
"""Keys that may be named. An optimizer replaces the schedule of the model."""


def plain(job: vfl.Job) -> Any:
    """Return a job as comparable values."""
    return job.model_dump(mode="json")


@pytest.mark.parametrize("model", ALL_MODEL_NAMES)
def test_naming_a_key_of_shares_at_its_default_changes_nothing(model: str) -> None:
    job = vfl.Job(model=model)
    assert job.protocol.shares is not None
    sections: list[Any] = ["shares", {"shares": {}}, {"shares": Shares()}]
    sections += [{"shares": {key: getattr(job.protocol.shares, key)}} for key in Shares.model_fields]
    for section in sections:
        assert plain(vfl.Job(model=model, protocol=section)) == plain(job), section


@pytest.mark.parametrize("model", ALL_MODEL_NAMES)
@pytest.mark.parametrize("key", list(Shares.model_fields))
def test_another_value_of_a_key_of_shares_changes_this_key_alone(model: str, key: str) -> None:
    other: dict[str, Any] = {
        **{"partner": "shop", "table_bits": 7, "step": 2.0, "clip": 16.0, "chunk": 3, "metrics_step": 1.0},
        **{"metrics_range": 64.0, "score_step": 1.0, "score_bits": 9, "scores": "none", "library": "seal"},
        **{"metrics": "loss"},
        **{"open_weights": ("shop",), "scores_to": "shop"},
    }
    job, changed = vfl.Job(model=model), vfl.Job(model=model, protocol={"shares": {key: other[key]}})
    assert job.protocol.shares is not None
    assert changed.protocol.shares == job.protocol.shares.model_copy(update={key: other[key]})
    assert {**plain(changed), "protocol": None} == {**plain(job), "protocol": None}


@pytest.mark.parametrize("model", [*ALL_MODEL_NAMES, "softmax"])
@pytest.mark.parametrize("key", NAMED)
def test_naming_a_key_at_its_default_changes_nothing(model: str, key: str) -> None:
    job = vfl.Job(model=model)
    assert plain(vfl.Job(model=model, **{key: getattr(job, key)})) == plain(job)


@pytest.mark.parametrize("key", list(Preparation.model_fields))
def test_naming_a_key_of_prepare_at_its_default_changes_nothing(key: str) -> None:
    job = vfl.Job(model="logistic")
    assert plain(vfl.Job(model="logistic", prepare={key: getattr(job.prepare, key)})) == plain(job)


@pytest.mark.parametrize("model", LOG_LINKS)
def test_tables_of_log_links_are_fine_whatever_else_is_named(model: str) -> None:
    for keys in ({}, {"protocol": "shares"}, {"protocol": {"shares": {"open_weights": ["shop"]}}}):
        shares = vfl.Job(model=model, **keys).protocol.shares
        assert shares is not None
        assert (shares.table_bits, shares.step) == (8, 2.0**-4)
    own = vfl.Job(model=model, protocol={"shares": {"table_bits": 6}}).protocol.shares
    assert own is not None
    assert (own.table_bits, own.step) == (6, 2.0**-4)


@pytest.mark.parametrize("model", ALL_MODEL_NAMES)
@pytest.mark.parametrize("step", [1.0, 0.25, 2.0**-6])
def test_smaller_steps_have_more_entries(model: str, step: float) -> None:
    """A table covers the same sums as the default, as far as 2^8 entries allow; a number of entries never changes."""
    default, job = vfl.Job(model=model).protocol.shares, vfl.Job(model=model, protocol={"shares": {"step": step}})
    shares, spacing = job.protocol.shares, job.model.loss.spacing
    assert default is not None
    assert shares is not None
    covered = 2**default.table_bits * (default.step or spacing)
    assert shares.table_bits == 8 or 2**shares.table_bits * step >= covered
    fixed = vfl.Job(model=model, protocol={"shares": {"step": max(step, 0.25), "table_bits": 5}}).protocol.shares
    assert fixed is not None
    assert fixed.table_bits == 5
