"""Every model on shares with several row blocks, compared with the same training in one block.

Masks and rounding are random, so the weights of both runs differ by the rounding error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.families.shares import shares_facts
from securevfl.protocols.shares import offline_phase
from securevfl.runtime.observer import Event

ROWS, BLOCK, VISITS, STEP, RATE = 260, 48, 3, 2.0**-4, 0.3
TESTED_MODELS: dict[str, Any] = {
    "logistic": vfl.Logistic(),
    "smooth_hinge": vfl.SmoothHinge(),
    "one_vs_rest": vfl.OneVsRest(),
    "square": vfl.Square(),
    "quantile": vfl.Quantile(),
    "huber": vfl.Huber(),
    "poisson": vfl.Poisson(),
    "gamma": vfl.Gamma(),
    "tweedie": vfl.Tweedie(),
    "negative_binomial": vfl.NegativeBinomial(),
    "trees": vfl.Trees(trees=3, depth=2),
    "trees of classes": vfl.Trees(trees=3, depth=2, loss="one_vs_rest", boosted_score=False),
    "trees of numbers": vfl.Trees(trees=3, depth=2, loss="square", boosted_score=False),
}
# with two parties: others differ from these in the entries of their tables, or are run with three
OF_TWO = ("square", "poisson", "trees")
RUNS = [
    *(pytest.param(name, 2, marks=[pytest.mark.slow] * (name not in OF_TWO)) for name in TESTED_MODELS),
    *((name, 3) for name in ("logistic", "one_vs_rest", "trees of classes")),
]
CLASSES = {"one_vs_rest": 4, "trees of classes": 4, "logistic": 2, "smooth_hinge": 2, "trees": 2}


def parties_for_model(name: str, count: int) -> list[vfl.Party]:
    draw = np.random.default_rng(11)
    X = draw.normal(size=(ROWS, 3 * count))
    f = X[:, ::2].sum(axis=1) / 3
    if classes := CLASSES.get(name):
        y = np.digitize(f, np.quantile(f, np.arange(1, classes) / classes))
    elif name in ("poisson", "negative_binomial"):
        y = draw.poisson(np.exp(f / 2))
    else:
        y = np.exp(f / 2 + 0.1 * draw.normal(size=ROWS))
    tables = np.split(X, count, axis=1)
    return [
        vfl.Party(party, Z, y if party == "a" else None, aligned=True) for party, Z in zip("abc", tables, strict=False)
    ]


def trained(model: Any, parties: list[vfl.Party]) -> tuple[Any, list[Event]]:
    """Train; return the reconstructed weights of all parties, stacked, and the messages."""
    shares, events = vfl.Shares(table_bits=8, step=STEP, chunk=2), list[Event]()
    steps = {"optimizer": vfl.FedSGD(lr=RATE), "batch_size": "all", "epochs": VISITS}
    job = vfl.Job(model=model, protocol=vfl.Protocol(shares=shares), test_fraction=0.0, **steps)
    run = vfl.simulate(job, parties, observe=events.append)
    states = {name: part.state for name, part in run.parts.items()}
    return np.concatenate(list(whole_weights(run.job, states, "a").values())), events


@pytest.mark.parametrize(("name", "count"), RUNS)
def test_several_blocks_give_the_weights_of_one(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual is one of two entries of its table, at most STEP times its slope (1, with a log link 2) apart: less
    than STEP / 2 of deviation in each run. Columns have a mean square of 1 at most, so weights of the two runs differ
    with a deviation of `noise` at most: by six of these, and by what numbers are rounded to."""
    tables = parties_for_model(name, count)
    weights, one = trained(TESTED_MODELS[name], tables)
    with monkeypatch.context() as patch:
        patch.setattr(shares_facts, "rows_per_block", lambda rows: BLOCK)
        patch.setattr(offline_phase, "_MAX_PENDING_VALUES", 150)  # so that blocks come in several groups
        parted, several = trained(TESTED_MODELS[name], tables)
    slope = 2.0 if name in ("poisson", "gamma", "tweedie", "negative_binomial") else 1.0
    noise = slope * STEP / 2 * RATE * np.sqrt(2 * VISITS / ROWS)
    bound = 6 * noise + 2.0**-7
    assert np.abs(weights).max() > 2 * bound
    np.testing.assert_allclose(parted, weights, atol=bound)
    sent = [sum(event.direction == "send" for event in events) for events in (one, several)]
    assert sent[1] > 2 * sent[0]
