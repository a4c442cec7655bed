from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _user_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has user data of its own, so that no disclosure ledger is that of whoever runs it."""
    folder = tmp_path_factory.mktemp("user-data")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="the first short test of every file, for an inner loop")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the first short test of every file under --quick."""
    if not config.getoption("--quick"):
        return
    seen: set[Path] = set()
    kept, left = [], []
    for item in items:
        if item.path in seen or any(item.get_closest_marker(name) for name in ("slow", "long", "realdata")):
            left.append(item)
        else:
            seen.add(item.path)
            kept.append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
