"""Compile the package and its tests before the workers of pytest start, on all cores: `python -m tests.compiled`.

pytest rewrites the asserts of a test module when it imports it, and stores the result. That takes 14 processor seconds
for all modules. Workers that start together would all do it at the same time, before the first of them has stored it.
"""

from __future__ import annotations

import ast
import compileall
import marshal
import os
import re
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER, source_hash
from multiprocessing import Pool, cpu_count
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


def compile_all(root: Path, folders: Sequence[str] = FOLDERS) -> None:
    """Compile all modules of these folders of the checkout, and rewrite those of tests."""
    for folder in folders:
        compileall.compile_dir(root / folder, quiet=1, rx=REWRITTEN, workers=cpu_count())
    with Pool() as pool:
        pool.map(rewrite, [file for file in sorted((root / "tests").rglob("*.py")) if REWRITTEN.search(str(file))], 8)


if __name__ == "__main__":
    compile_all(Path(__file__).parents[1])
