"""Pages that are generated from the code and from measurements. They are committed, so that links to them resolve.

`python -m docs.made_pages` writes them (`make pages`); mkdocs calls `on_pre_build` before it reads the folder. A test
compares the committed pages (tests/docs/test_reference.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def _job_file(path: Path) -> None:
    from docs import job_file_page

    path.write_text(job_file_page.page(), encoding="utf-8")


def _declarations(path: Path) -> None:
    from docs import declarations_page

    path.write_text(declarations_page.table(), encoding="utf-8")


def _error_codes(path: Path) -> None:
    from docs import error_codes_page

    path.write_text(error_codes_page.page(), encoding="utf-8")


def _licences(path: Path) -> None:
    from docs import licences_page

    path.write_text(licences_page.page(), encoding="utf-8")


def _optimizers(path: Path) -> None:
    from docs import optimizers_page

    path.write_text(optimizers_page.page(), encoding="utf-8")


def _sample_sheet(path: Path) -> None:
    from docs import sample_sheet_page

    path.write_text(sample_sheet_page.page(), encoding="utf-8")


def _mutants(path: Path) -> None:
    from selfcheck.mutants import mutant_table

    path.write_text(mutant_table.as_markdown(), encoding="utf-8")


def _results(path: Path) -> None:
    from benchmarks.papers import page

    page.write(ROOT / "benchmarks" / "papers" / "results", path)


def _python(path: Path) -> None:
    path.write_text(PYTHON, encoding="utf-8")


def _notebook(name: str) -> Callable[[Path], None]:
    """Return the writer of the page of a notebook, with the outputs that are stored in the notebook."""

    def write_page(path: Path) -> None:
        from docs import notebooks

        path.write_text(notebooks.page(notebooks.FOLDER / f"{name}.ipynb"), encoding="utf-8")

    return write_page


PYTHON = """# Python

`import securevfl as vfl` gives every name of the first part. Options of a job have the meanings that
[keys of job.toml](job-file.md) lists.

::: securevfl

## Errors

::: securevfl.errors
    options:
      heading_level: 3
"""
MADE: dict[str, Callable[[Path], None]] = {
    "after-the-training": _notebook("after_the_training"),
    "api": _python,
    "declarations": _declarations,
    "error-codes": _error_codes,
    "first-model": _notebook("first_model"),
    "job-file": _job_file,
    "licences": _licences,
    "mutants": _mutants,
    "optimizers": _optimizers,
    "results": _results,
    "sample-sheet": _sample_sheet,
    "scikit-learn": _notebook("scikit_learn"),
    "what-a-job-discloses": _notebook("what_a_job_discloses"),
}


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    for name, generate in MADE.items():
        generate(folder / f"{name}.md")


def on_pre_build(config: Any) -> None:
    """Generate the pages before mkdocs looks for them."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    write(Path(config["docs_dir"]))


if __name__ == "__main__":
    on_pre_build({"docs_dir": ROOT / "docs"})
