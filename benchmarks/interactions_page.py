"""The stored figures of `python -m benchmarks.interactions`, and the section of docs/interactions.md with them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.bench.result_file import machine

RESULTS = Path(__file__).parent / "interaction_results.json"
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "interactions.md"
PLACE = re.compile(r"(<!-- drawn: measured -->\n).*?(<!-- end -->)", re.DOTALL)
MIN_GAP = 0.003
"""The share is stated if pooled boosting gains at least this over additive boosting."""
KEYS = "what", "table", "seed", "rows"
"""The fields that identify a row: a new row replaces a stored one with the same values."""
Row = dict[str, Any]


def store(schema: str, rows: Sequence[Row]) -> None:
    """Add rows to the stored ones, each with the commit and the date of today, and draw the page again."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)  # noqa: S607
    origin = {"commit": commit.stdout.strip() or "unknown", "date": datetime.now(UTC).date().isoformat()}
    computer = machine()
    origin |= {"machine": f"{computer['processor']}, {computer['cores']} cores, Python {computer['python']}"}
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.is_file() else []
    new = {_key(row): row | origin for row in rows}
    merged = {_key(row): row for row in stored} | new
    content = {"schema": schema, "rows": list(merged.values())}
    RESULTS.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def drawn(text: str) -> str:
    """Return the text of the page with its section drawn from the stored rows."""
    section = _section(json.loads(RESULTS.read_text(encoding="utf-8"))["rows"])
    return PLACE.sub(lambda place: f"{place[1]}{section}{place[2]}", text)


def summary(rows: Sequence[Row]) -> Row:
    """Return the means of the rows of one table, with the gain by pairs, the gap of boosting and their ratio."""
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("additive", "pooled", "trees", "pairs")}
    gain, gap = means["pairs"] - means["trees"], means["pooled"] - means["additive"]
    return means | {"gain": gain, "gap": gap, "share": gain / gap if gap else float("nan")}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in KEYS)


def _section(rows: Sequence[Row]) -> str:
    tables: dict[str, list[Row]] = {}
    for row in rows:
        if row["what"] == "auc":
            tables.setdefault(row["table"], []).append(row)
    parts = [_aucs(tables)] if tables else []
    if shares := [row for row in rows if row["what"] == "shares"]:
        cells = [[row["table"], f"{row['rows']:,}", f"{row['shares']:.4f}", f"{row['floats']:.4f}"] for row in shares]
        parts.append(_table(["logistic regression with pairs", "rows", "on shares", "in floats"], cells))
    for row in rows:
        if row["what"] == "training":
            parts.append(
                f"In a training of {row['rows']:,} rows with {row['iterations']} iterations, {row['products']} "
                f"products add {row['cpu_s']:.1f}\nprocessor seconds of both parties, and {row['mb']:.0f} MB.\n"
            )
        if row["what"] == "score":
            parts.append(
                f"A score of a new row takes {row['cpu_ms']:.2f} ms more of the processor with {row['products']} "
                f"products, and {row['kb']:.1f} kB.\n"
            )
    origins = sorted({(row["date"], row["commit"], row["machine"]) for row in rows})
    lines = [f"Commit {commit}, {date}, {computer}." for date, commit, computer in origins]
    return "\n" + "\n".join([*parts, "\n".join(lines)]) + "\n\n"


def _aucs(tables: dict[str, list[Row]]) -> str:
    cells = []
    for name, rows in tables.items():
        means = summary(rows)
        aucs = [f"{means[key]:.4f}" for key in ("additive", "pooled", "trees", "pairs")]
        share = f"{means['share']:.2f}" if means["gap"] > MIN_GAP else "-"
        cells.append([name, f"{rows[0]['rows']:,}", str(len(rows)), *aucs, f"{means['gain']:+.4f}", share])
    heads = ["table", "rows", "splits", "additive boosting", "pooled boosting", "trees", "with pairs", "gain", "share"]
    return _table(heads, cells)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---", *["--:"] * (len(heads) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, marks, *rows])
