"""Runs the notebooks of examples/, stores their outputs in them, and shows notebooks as pages.

`python -m docs.notebooks` runs every notebook and stores the outputs. A test runs them again and compares the words of
the outputs (tests/docs/test_notebooks.py). `docs/made_pages.py` turns each notebook into a page.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from securevfl.errors import DataNotice

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
COLUMNS = "80"


def outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a cell and return its outputs: printed text, and the value of a last expression.

    Args:
        source: the program of the cell.
        names: global names, which the cell may change.
        number: number of the cell among the cells with programs, from 1.

    Returns:
        The outputs as the notebook format has them.
    """
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # noqa: S307
    results: list[dict[str, Any]] = []
    if printed.getvalue():
        results.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        text = value if isinstance(value, str) and "\n" in value else repr(value)
        data = {"text/plain": str(text).splitlines(True)}
        results.append({"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}})
    return results


def run(path: Path) -> dict[str, Any]:
    """Return a notebook with the outputs of all cells, run from the top in the current folder."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    programs = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        for number, cell in enumerate(programs, 1):
            cell["outputs"] = outputs("".join(cell["source"]), names, number)
            cell["execution_count"] = number
    return notebook


def shown(cell: dict[str, Any]) -> str:
    """Return the stored outputs of a cell as text."""
    texts = [
        "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])
        for output in cell.get("outputs", ())
    ]
    return "\n".join(text.rstrip() for text in texts)


def page(path: Path) -> str:
    """Return a notebook as a page: its text, its programs and their stored outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        if output := shown(cell):
            parts.append(f"```text\n{output}\n```")
    parts.append(f"This page is the notebook `examples/{path.name}`, which `python -m docs.notebooks` runs.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run all notebooks, each in an empty folder, and store their outputs."""
    os.environ["COLUMNS"] = COLUMNS
    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            notebook = run(path)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
