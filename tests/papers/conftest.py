"""The replications of the papers are part of the checkout and not of the package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `benchmarks.papers` importable, as `python -m` does in the checkout."""
    if not (ROOT / "benchmarks" / "papers").is_dir():
        pytest.skip("needs a checkout")
    monkeypatch.syspath_prepend(str(ROOT))
