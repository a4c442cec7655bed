"""Requests for scores of a model with pairs: one that exceeds the limit is refused before its first block is scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import LeakageError, PeerStopped
from securevfl.organisations.prediction import ScoreCounts
from tests.builders import make_job, parties_of
from tests.families.pair_oracle import shared_exclusive_or
from tests.transport.test_scored_again import Trained, score_in_blocks

ROWS, BLOCK = 160, 16
PAIRS_JOB: dict[str, Any] = {
    "model": vfl.Logistic(pairs=2),
    "protocol": vfl.Protocol(shares=vfl.Shares()),
    "batch_size": "all",
    "epochs": 12,
    "test_fraction": 0.4,
    "accepts": ("small_metrics",),
}


@pytest.fixture
def trained(meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trained:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    score_in_blocks(BLOCK, monkeypatch)
    blocks, y = shared_exclusive_or(ROWS, columns=8)
    parties = parties_of(blocks, y, ids=np.arange(ROWS))
    return Trained(meet, tmp_path, make_job(PAIRS_JOB), parties)


def test_a_request_that_exceeds_the_limit_gets_no_score(trained: Trained) -> None:
    """The first blocks alone would be within the limit, and training rows of a request do not count."""
    training = [*range(ROWS, ROWS + len(trained.train))]
    outcomes, _ = trained.predict(range(ROWS))
    assert isinstance(outcomes["shop"], LeakageError)
    assert outcomes["shop"].code == "SVFL-LIMIT-REACHED"
    with pytest.raises(PeerStopped):  # the shop does not name its reasons
        trained.score(range(ROWS))
    assert trained.told().get("scores", 0) == 0

    count = 3 * BLOCK
    outcomes, left = trained.predict([*range(count), *training])
    assert outcomes["bank"] == ScoreCounts(count + len(training), count, trained=len(training))
    assert set(left["bank"].values()) == {"trained"}
    counts, first = trained.score([*range(count + BLOCK), *training])
    assert counts == ScoreCounts(count + BLOCK + len(training), count + BLOCK, trained=len(training))
    assert len(first) == count + BLOCK
    assert trained.told()["scores"] == count + BLOCK
    counts, again = trained.score(range(count + BLOCK))
    assert (counts.scored, again) == (count + BLOCK, first)
