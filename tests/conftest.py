from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _user_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has user data of its own, so that no disclosure ledger is that of whoever runs it."""
    folder = tmp_path_factory.mktemp("user-data")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder
