"""A fixture that lets the parties of a simulation keep score ledgers, as organisations do."""

from __future__ import annotations

import pytest

from securevfl.protocols.party_context import LocalResources
from securevfl.training import session


@pytest.fixture
def score_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    create = lambda *arguments, simulated, **keys: LocalResources(*arguments, **keys)  # noqa: E731
    monkeypatch.setattr(session, "LocalResources", create)
