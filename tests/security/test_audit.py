"""The quick part of the packaged audit suite, and that the docs made from its data are current."""

from pathlib import Path
from types import ModuleType

import pytest
from selfcheck.mutants import mutant_table as mutants

from securevfl.audit import declarations

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "maker"), [("declarations", declarations), ("mutants", mutants)])
def test_docs_are_current(page: str, maker: ModuleType) -> None:
    path = DOCS / f"{page}.md"
    if not path.exists():
        pytest.skip("the docs are not beside the tests")
    assert path.read_text(encoding="utf-8") == maker.table(), f"run python -m {maker.__name__} docs/{page}.md"
