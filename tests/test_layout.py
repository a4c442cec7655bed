"""Structure of the package: public names, folders, and one direction of imports."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import securevfl as vfl
from tests.parsed import PACKAGE, ROOT, nodes, nodes_of_package, nodes_of_tests


def test_public_names_exist_and_are_sorted() -> None:
    assert vfl.__all__ == sorted(vfl.__all__)
    assert all(hasattr(vfl, name) for name in vfl.__all__)


@pytest.mark.skipif(not (ROOT / "crypto").is_dir(), reason="no checkout")
@pytest.mark.parametrize("name", ["crypto", "protocols"])
def test_the_folders_are_no_packages_of_their_own(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: import this package as securevfl.{name}" in done.stderr


def test_phe_is_an_extra_that_nothing_else_needs() -> None:
    code = "import sys, securevfl, securevfl.cli.main; assert 'phe' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count as well; imports for types only do not."""
    grimp = pytest.importorskip("grimp", reason="is installed with import-linter, which a checkout has")
    graph = grimp.build_graph("securevfl", exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    tuple(TopologicalSorter(imports).static_order())  # CycleError names a circle


FAMILY_FOLDERS = {
    "fdml",
    "phases",
    "rounds",
    "shares",
    "transfer",
    "trees",
}  # whose method, options and steps share a name


def files_below(folder: Path) -> list[Path]:
    """Return the modules below a folder, including those behind the links crypto/ and protocols/."""
    files = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            files += files_below(path)
        elif path.suffix == ".py" and path.stem != "__init__":
            files.append(path)
    return files


def several(named: Iterable[tuple[str, Path]]) -> dict[str, set[Path]]:
    by_name: dict[str, set[Path]] = defaultdict(set)
    for name, path in named:
        by_name[name].add(path)
    return {name: paths for name, paths in by_name.items() if len(paths) > 1}


def classes(tree: list[ast.AST]) -> list[str]:
    """Return the public classes that a module defines."""
    body = ast.iter_child_nodes(tree[0])
    return [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


MOST = 8  # arguments of a function outside the command line, whose options are arguments
MORE = {  # the only functions that may have more arguments, and how many
    "join.join": 18,
    "session.take_part": 12,
    "simulate.simulate": 11,
    "run_shape.derive_run_shape": 9,
    "predict.predict_with": 10,
    "compare.compare_with": 9,
    "align.align_privately": 10,
}


def arguments(tree: list[ast.AST]) -> list[tuple[str, int]]:
    """Return the functions of a module: name, and arguments without self."""
    counts = []
    for node in tree:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            counts.append((node.name, len([name for name in names if name not in ("self", "cls")])))
    return counts


def test_functions_take_few_arguments() -> None:
    wide = [
        f"{path.stem}.{name}"
        for path, tree in nodes_of_package().items()
        for name, count in arguments(tree)
        if count > MORE.get(f"{path.stem}.{name}", MOST) and path.parent.name != "cli"
    ]
    assert wide == []


def test_a_name_of_a_class_is_one_thing() -> None:
    repeated = several((name, path) for path, tree in nodes_of_package().items() for name in classes(tree))
    assert not repeated


def test_a_name_of_a_module_is_one_thing() -> None:
    repeated = several((path.stem, path) for path in files_below(PACKAGE))
    assert set(repeated) <= {"base", "registry", *FAMILY_FOLDERS}, repeated


def test_two_things_of_one_name_are_found(tmp_path: Path) -> None:
    for room in ("one", "other"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "rows.py").write_text("class Rows: ...\nclass _Own: ...\n")
    assert set(several((path.stem, path) for path in files_below(tmp_path))) == {"rows"}
    assert set(
        several((name, path) for path in files_below(tmp_path) for name in classes(nodes(path.read_text())))
    ) == {"Rows"}


LOADERS = {"import_module", "__import__", "exec_module", "entry_points", "exec", "eval", "run_path", "run_module"}


def loads_by_name(tree: list[ast.AST]) -> bool:
    """Return whether a module loads code other than by an import statement."""
    names = {node.id for node in tree if isinstance(node, ast.Name)}
    return bool(LOADERS & (names | {node.attr for node in tree if isinstance(node, ast.Attribute)}))


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="no checkout")
def test_the_architecture_page_names_all_loading_by_name() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Modules that are loaded by name")[2].partition("\n## ")[0]
    loading = {
        f"securevfl/{path.relative_to(PACKAGE)}" for path, tree in nodes_of_package().items() if loads_by_name(tree)
    }
    assert loading == set(re.findall(r"`(securevfl/[\w/]+\.py)`", table))


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nimportlib.import_module('securevfl.families')",
        "from importlib import import_module\nimport_module(name)",
        "__import__('securevfl.families')",
        "from importlib.metadata import entry_points\nentry_points(group='x')",
        "spec.loader.exec_module(code)",
    ],
)
def test_code_that_is_loaded_by_name_is_found(source: str) -> None:
    assert loads_by_name(nodes(source))
    assert not loads_by_name(nodes("from securevfl.families import FAMILIES"))


# Tests that name what is private, replace parts of the package or repeat its wording hold its structure in place. Their
# numbers may fall and not rise. Lower a limit when a count has fallen.
MAX_WORDING_ASSERTIONS = 60
MAX_PRIVATE_ACCESSES = 350
MAX_PATCHES = 400
MAX_BUILDERS_ELSEWHERE = 15
MAX_LONG_TEST_NAMES = 0
LONG_TEST_NAME = 60  # characters
PATCHING_METHODS = {"setattr", "delattr", "setitem", "delitem"}
BUILDER_NAMES = {"job", "jobs", "a_job", "party", "parties", "table", "tables"}
BUILTIN_PRIVATE = {"os._exit", "sys._getframe"}  # documented functions of the standard library
NAMEDTUPLE_METHODS = {"_asdict", "_fields", "_replace"}

Finding = tuple[int, str]
"""A line and what it contains."""


def is_private(name: str) -> bool:
    """Whether a name is private; `_repr_html_` and the like are the interface to notebooks."""
    return name.startswith("_") and not name.endswith("_")


def wording_assertions(tree: Iterable[ast.AST]) -> Iterator[Finding]:
    """Yield the `match` arguments of calls, which compare the wording of an error or a warning."""
    for node in tree:
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value.lineno, f"match={ast.unparse(node.value)}"


def private_accesses(tree: Iterable[ast.AST]) -> Iterator[Finding]:
    """Yield the private names that are imported, and the private attributes of other objects than `self`."""
    for node in tree:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in NAMEDTUPLE_METHODS:
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()") and f"{owner}.{node.attr}" not in BUILTIN_PRIVATE:
                yield node.lineno, f"{owner}.{node.attr}"


def patches(tree: Iterable[ast.AST]) -> Iterator[Finding]:
    """Yield the calls of pytest's `monkeypatch` and of `mock.patch` that replace something; variables of the process,
    which are an interface to users, do not count."""
    for node in tree:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = ast.unparse(node.func)
            owner, _, method = called.rpartition(".")
            if (owner and method in PATCHING_METHODS) or re.search(r"\bmock\.patch(\.\w+)?$", called):
                yield node.lineno, called


def builders(tree: Iterable[ast.AST]) -> Iterator[Finding]:
    """Yield the functions that are called like a job, a party or a table, whatever underscores surround the name."""
    for node in tree:
        if isinstance(node, ast.FunctionDef) and node.name.strip("_") in BUILDER_NAMES:
            yield node.lineno, node.name


def long_test_names(tree: Iterable[ast.AST]) -> Iterator[Finding]:
    for node in tree:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > LONG_TEST_NAME:
            yield node.lineno, node.name


def unread_parameters(tree: Iterable[ast.AST]) -> Iterator[Finding]:
    """Yield the parameters that a test does not read, such as an expected text that it does not compare."""
    for node in tree:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        read = {item.id for statement in node.body for item in ast.walk(statement) if isinstance(item, ast.Name)}
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.parametrize"):
                names = ast.literal_eval(call.args[0])
                listed = names.split(",") if isinstance(names, str) else names
                yield from ((node.lineno, name) for name in map(str.strip, listed) if name not in read)


@pytest.mark.parametrize(
    ("count", "limit"),
    [
        (unread_parameters, 0),
        (wording_assertions, MAX_WORDING_ASSERTIONS),
        (private_accesses, MAX_PRIVATE_ACCESSES),
        (patches, MAX_PATCHES),
        (builders, MAX_BUILDERS_ELSEWHERE),
        (long_test_names, MAX_LONG_TEST_NAMES),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tests_pin_little_of_the_structure(count: Callable[[Iterable[ast.AST]], Iterator[Finding]], limit: int) -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path, tree in nodes_of_tests().items()
        if path != ROOT / "tests" / "builders.py"
        for line, what in count(tree)
    ]
    assert len(findings) <= limit, f"{len(findings)} of at most {limit}:\n" + "\n".join(findings)


def constants(tree: list[ast.AST]) -> list[str]:
    """Return the public constants that a module defines."""
    targets: list[ast.expr] = []
    for node in ast.iter_child_nodes(tree[0]):
        targets += node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.AnnAssign) and node.value is not None else []
    return [node.id for node in targets if isinstance(node, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", node.id)]


def test_a_name_of_a_constant_has_one_meaning() -> None:
    assert not several((name, path) for path, tree in nodes_of_package().items() for name in constants(tree))


def test_the_counts_find_what_they_look_for() -> None:
    tree = nodes(
        """
from securevfl.x import _hidden
def test_a(monkeypatch, key):
    with pytest.raises(E, match="prose"), mock.patch.object(key, "_secret"):
        monkeypatch.setattr(key, "_secret", key._secret)
        monkeypatch.setenv("X", "1")
def _job(): ...
"""
        + f"def test_{'a' * LONG_TEST_NAME}(): ..."
    )
    assert [what for _, what in wording_assertions(tree)] == ["match='prose'"]
    assert sorted(what for _, what in private_accesses(tree)) == ["_hidden", "key._secret"]
    assert sorted(what for _, what in patches(tree)) == ["mock.patch.object", "monkeypatch.setattr"]
    assert [what for _, what in builders(tree)] == ["_job"]
    assert [line for line, _ in long_test_names(tree)] == [8]
