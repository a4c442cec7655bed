"""The quick part of the packaged audit suite, and that the docs made from its data are current."""

from pathlib import Path

import pytest

from securevfl.audit import declarations, mutants
from securevfl.audit.suite.test_checks import *  # noqa: F403
from securevfl.audit.suite.test_declarations import *  # noqa: F403
from securevfl.audit.suite.test_mutants import *  # noqa: F403

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "table"), [("declarations", declarations.table), ("mutants", mutants.table)])
def test_docs_are_current(name: str, table: object) -> None:
    path = DOCS / f"{name}.md"
    if not path.exists():
        pytest.skip("the docs are not beside the tests")
    assert path.read_text(encoding="utf-8") == table(), f"run python -m securevfl.audit.{name} docs/{name}.md"  # type: ignore[operator]
