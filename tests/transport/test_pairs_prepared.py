"""Shares of pairs in a folder of preprocessing: two organisations compute them, and use them in a later training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.organisations.join import join
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.prepare import prepare
from securevfl.protocols.shares.pair_columns import PAIR_FILE
from securevfl.training.model_part import ModelPart
from tests.builders import make_job, parties_of
from tests.families.pair_oracle import shared_exclusive_or
from tests.transport.processes import at_each
from tests.transport.test_pair_requests import PAIRS_JOB, ROWS


def test_a_failed_preparation_releases_its_folder(meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder is locked while shares are computed, and the error of a failed attempt still refers to the lock."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    meeting = meet(2, None, make_job(PAIRS_JOB))
    blocks, y = shared_exclusive_or(ROWS, columns=8)
    parties = parties_of(blocks, y, ids=np.arange(ROWS))

    def at(kit: Path) -> PeerSettings:
        return PeerSettings.of(kit / "peers.toml", timeout=20, patience=5)

    def prepared() -> dict[str, Any]:
        return at_each(
            meeting,
            lambda party, kit: prepare(meeting.job, party, at(kit), preprocessing=kit / "ahead"),
            parties,
        )

    def stored() -> Path:
        (path,) = (meeting.kit("shop") / "ahead").glob(f"**/{PAIR_FILE}")
        return path

    assert prepared() == {"bank": None, "shop": None}
    path = stored()
    path.unlink()
    path.mkdir()  # the shop cannot write its shares
    errors = prepared()
    assert isinstance(errors["shop"], Exception)
    path.rmdir()
    assert prepared() == {"bank": None, "shop": None}, errors
    first = path.read_bytes()
    parts = at_each(
        meeting,
        lambda party, kit: join(
            meeting.job, party, kit / "peers.toml", preprocessing=kit / "ahead", timeout=20, patience=5
        ),
        parties,
    )
    assert {type(part) for part in parts.values()} == {ModelPart}, parts
    assert path.read_bytes() == first  # the training has not computed them again
