from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _user_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has user data of its own, so that no disclosure ledger is that of whoever runs it."""
    folder = tmp_path_factory.mktemp("user-data")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder


EACH = 2  # tests of a file in an inner loop


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help=f"the first {EACH} tests of every file, for an inner loop")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the first tests of every file under --quick, one of each function."""
    if not config.getoption("--quick"):
        return
    taken: dict[Path, list[str]] = {}
    kept, left = [], []
    for item in items:
        mine, name = taken.setdefault(item.path, []), item.name.split("[")[0]
        if len(mine) < EACH and name not in mine and not item.get_closest_marker("slow"):
            mine.append(name)
            kept.append(item)
        else:
            left.append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
