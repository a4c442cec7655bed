"""The replications of the papers stand beside the package, in the checkout alone."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks.papers` can be imported, as `python -m` has it from the checkout."""
    if not (ROOT / "benchmarks" / "papers").is_dir():
        pytest.skip("not beside a checkout")
    monkeypatch.syspath_prepend(str(ROOT))
