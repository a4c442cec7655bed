"""Every error has a code of the catalogue, a problem and a remedy, and shows no data."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from docs import error_codes_page
from securevfl import errors
from securevfl.error_codes import CATALOGUE
from tests.parsed import PACKAGE, nodes_of_package

ERRORS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.SecureVFLError) and kind is not errors.SecureVFLError
}
WITH_BUILT_IN_CODE = {"PeerStopped", "StorageError"}
"""Classes whose constructors choose the code themselves."""
MAX_ERROR_CODES = 150
TABLE_VALUES = re.compile(r"^(values?|cells?|labels?|ids?|identifiers?|targets?|column_values?|X|Y|y)(\[.*\])?$")
"""Expressions that would put the contents of a table into a message."""


@cache
def _created_errors() -> list[tuple[Path, ast.Call]]:
    """Return the modules and the calls that create an error of this package."""
    return [
        (path, node)
        for path, tree in nodes_of_package().items()
        for node in tree
        if isinstance(node, ast.Call) and _name(node) in ERRORS
    ]


def _module(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _lacks_code(call: ast.Call) -> bool:
    passes_on = any(keyword.arg is None for keyword in call.keywords)
    return _name(call) not in WITH_BUILT_IN_CODE and not passes_on and _keyword(call, "code") is None


def test_the_catalogue_is_small_and_its_codes_well_formed() -> None:
    assert len(CATALOGUE) <= MAX_ERROR_CODES
    assert all(re.fullmatch(r"SVFL(-[A-Z]+)+", code) for code in CATALOGUE)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_a_code_has_a_cause_and_a_remedy(code: str) -> None:
    for sentence in CATALOGUE[code]:
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_every_error_is_created_with_a_code() -> None:
    lacking = {_module(path) for path, call in _created_errors() if _lacks_code(call)}
    assert sorted(lacking) == []


def test_codes_are_those_of_the_catalogue_and_all_are_used() -> None:
    used = {
        node.value
        for path, tree in nodes_of_package().items()
        if path.name != "error_codes.py"
        for node in tree
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"SVFL-[A-Z-]+", node.value)
    }
    assert used <= CATALOGUE.keys()
    assert sorted(CATALOGUE.keys() - used) == []


def test_every_error_has_a_problem_and_a_remedy() -> None:
    """A missing remedy is that of the catalogue; a problem is a statement without a final stop."""
    wrong = []
    for path, call in _created_errors():
        if _name(call) in WITH_BUILT_IN_CODE:
            continue
        problem = call.args[0] if call.args else _keyword(call, "problem")
        text = _last_text(problem)
        if problem is None or text.endswith(".") or ("expected" in text and "came" in text):
            wrong.append(f"{_module(path)}:{call.lineno}")
    assert wrong == []


def _last_text(node: ast.expr | None) -> str:
    """Return the constant text at the end of an expression that builds a string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
            return text
        case ast.BinOp(right=right):
            return _last_text(right)
    return ""


def test_no_message_or_field_contains_a_value_of_a_table() -> None:
    leaks = []
    for path, call in _created_errors():
        inserted = [part.value for part in ast.walk(call) if isinstance(part, ast.FormattedValue)]
        inserted += [keyword.value for keyword in call.keywords if keyword.arg not in (None, "code")]
        leaks += [
            f"{_module(path)}:{part.lineno}: {ast.unparse(part)}"
            for part in inserted
            if TABLE_VALUES.match(ast.unparse(part))
        ]
    assert leaks == []


@pytest.mark.parametrize("name", sorted(ERRORS - WITH_BUILT_IN_CODE))
def test_an_error_renders_its_problem_and_its_remedy(name: str) -> None:
    error = getattr(errors, name)("column 'x' is empty", code="SVFL-TABLE-EMPTY-COLUMN", column="x")
    remedy = CATALOGUE["SVFL-TABLE-EMPTY-COLUMN"].remedy
    assert (error.code, error.fields, error.remedy) == ("SVFL-TABLE-EMPTY-COLUMN", {"column": "x"}, remedy)
    assert str(error) == f"column 'x' is empty. {remedy}"


def test_the_page_lists_every_code_once() -> None:
    page = error_codes_page.page()
    for code, (cause, remedy) in CATALOGUE.items():
        assert page.count(f"| `{code}` | {cause} | {remedy} |") == 1
