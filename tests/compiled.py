"""Compile the package and its tests before the workers of pytest start, on all cores: `python -m tests.compiled`.

pytest rewrites the asserts of a test module when it imports it, and stores the result. That takes 14 processor seconds
for all modules. Workers that start together would all do it at the same time, before the first of them has stored it.
The same holds for the modules of other packages, which `make` installs without bytecode.
"""

from __future__ import annotations

import ast
import compileall
import marshal
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from importlib.util import MAGIC_NUMBER, cache_from_source, find_spec, source_hash
from multiprocessing import cpu_count
from pathlib import Path

# pytest has no public function for it; requirements.lock pins its version
from _pytest.assertion.rewrite import PYC_TAIL, get_cache_dir, rewrite_asserts

FOLDERS = ("securevfl", "crypto", "protocols", "tests", "benchmarks")
REWRITTEN = re.compile(r"(^|/)(test_[^/]*|conftest)\.py$")  # the modules whose asserts pytest rewrites
CHECKED_HASH = (3).to_bytes(4, "little")  # the stored code is valid for sources of this hash (PEP 552)


def rewrite(file: Path) -> None:
    """Store a module with rewritten asserts where pytest looks for it, unless it is there."""
    source = file.read_bytes()
    head = MAGIC_NUMBER + CHECKED_HASH + source_hash(source)
    folder = get_cache_dir(file)
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / (file.stem + PYC_TAIL)
    if stored.exists() and stored.read_bytes().startswith(head):
        return
    tree = ast.parse(source, str(file))
    rewrite_asserts(tree, source, str(file))
    draft = stored.with_suffix(f".{os.getpid()}")
    draft.write_bytes(head + marshal.dumps(compile(tree, str(file), "exec", dont_inherit=True)))
    draft.replace(stored)


def imported_modules(root: Path, folders: Sequence[str] = FOLDERS) -> Iterator[str]:
    """Yield the names of all modules that the modules of these folders import, with repetitions."""
    for file in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module


def load_packages(root: Path, folders: Sequence[str] = FOLDERS) -> list[str]:
    """Import the modules of other packages that the checkout imports; Python then stores their bytecode.

    Args:
        root: the checkout.
        folders: the folders of the checkout with modules.

    Returns:
        The names of the imported modules; none of a package whose bytecode is stored already.
    """
    names = set(imported_modules(root, folders))
    packages = {name.partition(".")[0] for name in names} - set(folders) - sys.stdlib_module_names
    without = {package for package in packages if not _has_bytecode(package)}
    imported = sorted(name for name in names if name.partition(".")[0] in without)
    for name in imported:
        with suppress(Exception):  # a module that cannot be imported here is not used here
            import_module(name)
    return imported


def _has_bytecode(package: str) -> bool:
    """Return whether the bytecode of a package is stored, or the package has none."""
    spec = find_spec(package)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return True
    return Path(cache_from_source(spec.origin)).exists()


def compile_all(root: Path, folders: Sequence[str] = FOLDERS) -> None:
    """Compile all modules of these folders of the checkout, rewrite those of tests, and load other packages."""
    for folder in folders:
        compileall.compile_dir(root / folder, quiet=1, rx=REWRITTEN, workers=cpu_count())
    with ProcessPoolExecutor() as pool:
        loaded = pool.submit(load_packages, root, folders)
        tests = [file for file in sorted((root / "tests").rglob("*.py")) if REWRITTEN.search(str(file))]
        list(pool.map(rewrite, tests, chunksize=8))
        loaded.result()


if __name__ == "__main__":
    compile_all(Path(__file__).parents[1])
