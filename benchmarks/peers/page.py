"""The figures of docs/peers.md and README.md, from the result files alone.

A page has marks `<!-- drawn: NAME -->` ... `<!-- end -->`. The text between them is generated; the remaining text is
written by hand. tests/bench/test_peers.py checks that pages agree with the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.plans import NEAR, PARTS, System

PAGES = "docs/peers.md", "README.md"
PLACE = re.compile(r"(<!-- drawn: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]
WORDS = {  # words for settings on a page
    "batch": "batches of {:,}",
    "epochs": "{} epochs",
    "step": "step {:g}",
    "sigmoid": "sigmoid {}",
    "iterations": "{} iterations",
    "trees": "{} trees",
    "depth": "depth {}",
    "bins": "{} bins",
    "pairs": "pairs of {} components each",
    "ids": "{:,} ids a side",
    "field": "{}",
}


def draw(results: Path, root: Path) -> None:
    """Draw the marked places of all pages below `root` again."""
    for name in PAGES:
        page = root / name
        page.write_text(drawn(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def drawn(text: str, results: Path) -> str:
    """Return the text of a page with its marked places drawn from the files."""
    files = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(results.glob("*.json"))}
    return PLACE.sub(lambda place: f"{place[1]}{PAGE_SECTIONS[place['name']](files)}{place[3]}", text)


def best(result: dict[str, Any], system: System, settings: Row | None = None) -> dict[str, Row]:
    """Return the rows of a system by link, for these settings or else for the best ones.

    The best settings are the cheapest that reach the target, or those of the highest AUC. If none has a figure, the row
    states the reason, as `failed`.
    """
    rows = [row for row in result["rows"] if row["system"] == system.name and settings in (None, row["settings"])]
    done = [row for row in rows if "failed" not in row and row["line"] == "loopback"]
    if not done:
        lost = [row for row in rows if "failed" in row]
        return {"failed": lost[-1]} if lost else {}
    if "bar" in result:
        enough = [row for row in done if row["auc"] >= result["bar"] - NEAR]
        chosen = min(enough, key=lambda row: row["cpu_s"]) if enough else max(done, key=lambda row: row["auc"])
    else:
        chosen = done[0]
    return {row["line"]: row for row in rows if row["settings"] == chosen["settings"] and "failed" not in row}


def _pairs(result: dict[str, Any], part: str) -> list[tuple[System, dict[str, Row]]]:
    """Return the systems of a part with their rows; of parts without a target, each setting."""
    pairs = []
    for system in PARTS[part]:
        item = [None] if "bar" in result else list(system.settings)
        pairs += [(system, best(result, system, settings)) for settings in item]
    return [(system, rows) for system, rows in pairs if rows]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    marks = ["---"] * left + ["--:"] * (len(heads) - left)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, marks, *rows])


def figure(value: float | None) -> str:
    """Format three digits with a thousands separator; a dash for None."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}".rstrip("0").rstrip(".")


def _setting(settings: Row) -> str:
    return ", ".join(WORDS[key].format(value) for key, value in settings.items() if key in WORDS)


def _costs(rows: dict[str, Row]) -> list[str]:
    near, far = rows["loopback"], rows.get("far")
    size = near["bytes"] if near["bytes"] is not None else far and far["bytes"]
    return [
        figure(near["cpu_s"]),
        figure(near.get("work_cpu_s")),
        figure(near["seconds"]),
        figure(far["seconds"] if far else None),
        figure(None if size is None else size / 1e6),
        " + ".join(f"{item:,}" for item in near["memory_mb"]),
    ]


COSTS = ["processor s", "of it the work", "s, loopback", "s, 300 Mbps and 20 ms", "MB", "peak MB"]


def _trained(part: str) -> Callable[[dict[str, Any]], str]:
    def section(files: dict[str, Any]) -> str:
        if part not in files:
            return "\nNot run yet.\n\n"
        result, rows, failed = files[part], [], []
        if "bar" in result:
            rows.append(["scikit-learn, pooled columns", "", f"{result['bar']:.4f}", *["-"] * len(COSTS)])
        for system, item in _pairs(result, part):
            if "failed" in item:
                failed.append(f"{system.words}: not run here, {item['failed']['failed']}.\n")
            else:
                row = item["loopback"]
                rows.append([system.words, _setting(row["settings"]), f"{row['auc']:.4f}", *_costs(item)])
        table = _table(["system", "settings", "AUC", *COSTS], rows, left=2)
        return f"\n{table}\n{_conditions(result)}{''.join(failed)}\n"

    return section


def _psi(files: dict[str, Any]) -> str:
    if "psi" not in files:
        return "\nNot run yet.\n\n"
    result, rows, failed = files["psi"], [], []
    for system, item in _pairs(result, "psi"):
        if "failed" in item:
            failed.append(f"{system.words}: not run here, {item['failed']['failed']}.\n")
            continue
        ids, far = item["loopback"]["settings"]["ids"], item.get("far")
        a_row = "-" if far is None else figure(far["bytes"] / ids)
        rows.append([system.words, f"{ids:,}", *_costs(item), a_row])
    table = _table(["system", "ids a side", *COSTS, "bytes an id"], rows)
    return f"\n{table}\n{_conditions(result)}{''.join(failed)}\n"


def _conditions(result: dict[str, Any]) -> str:
    machine, done = result["machine"], [row for row in result["rows"] if "failed" not in row]
    if not done:
        return ""
    loads, days = [row["load"] for row in done], sorted({row["date"] for row in done})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    busy = _busy(machine, max(loads))
    return (
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, {when}, load averages of\n"
        f"{min(loads):g} to {max(loads):g} at the start of a run{busy}.\n"
    )


def _busy(machine: dict[str, Any], load: float) -> str:
    return "" if load < machine["cores"] else ": other work had the cores too, so go by processor seconds"


def _reads(files: dict[str, Any]) -> str:
    readable: dict[str, list[str]] = {}
    for part in PARTS.values():
        for system in part:
            local = system.environment is None
            name = "securevfl align" if local and part is PARTS["psi"] else "securevfl" if local else system.words
            if name not in (known := readable.setdefault(system.reads, [])):
                known.append(name)
    rows = [["; ".join(names), reads] for reads, names in readable.items()]
    return f"\n{_table(['system', 'what a party could read, besides its own'], rows, left=2)}\n"


def _gradient(files: dict[str, Any]) -> str:
    if GRADIENT not in files:
        return "\nNot run yet.\n\n"
    result, rows = files[GRADIENT], []
    for row in result["rows"]:
        if row["error"] is None:
            mark = " (scaled from a slice)" if row["estimated"] else ""
            cells = [f"{row['n']:,} x {row['d']}", f"{row['engine']}{mark}", figure(row["total_ms"])]
            rows.append([*cells, figure(row["ratio_to_phe"]), figure(row["cpu_ratio_to_phe"])])
    machine = result["machine"]
    table = _table(["rows x columns", "engine", "ms", "times phe", "by processor"], rows, left=2)
    return (
        f"\n{table}\n{machine['processor']}, {machine['cores']} cores, {result['date']}, "
        f"load average {machine['load_average']:g}{_busy(machine, machine['load_average'])}.\n\n"
    )


GRADIENT = "gradient"


def _published(files: dict[str, Any]) -> str:
    heads = ["system", "what", "figure", "on", "source"]
    rows = [[row[key] for key in heads] for row in files["published"]["rows"]]
    return f"\n{_table(heads, rows, left=5)}\n"


def _spent(files: dict[str, Any], part: str, name: str, key: str = "cpu_s") -> float | None:
    """Return a figure of a system's best row, or of the first row in parts without a target; None if missing."""
    if part not in files:
        return None
    system = next(item for item in PARTS[part] if item.name == name)
    rows = best(files[part], system, None if "bar" in files[part] else system.settings[0])
    return float(rows["loopback"][key]) if "loopback" in rows else None


COMPARED = {  # the rows of README: systems without a dealer of triples, by model
    "linear": (
        ("logistic regression", "securevfl, default options", "ours-default"),
        ("logistic regression", "SecretFlow SS-LR on CHEETAH", "secretflow-cheetah"),
    ),
    "trees": (
        ("trees", "securevfl", "ours-trees"),
        ("trees", "securevfl, with interactions", "ours-pairs"),
        ("trees", "SecretFlow SGB", "secretflow-sgb"),
    ),
}


def _speed(files: dict[str, Any]) -> str:
    """Return the rows of README: AUC and processor seconds of both parties, for systems that have been run.

    The AUC of a model is stated with its difference from that of the pooled table, and its processor seconds with their
    ratio to those of the first system that trains a model of the same kind.
    """
    rows = []
    for part, compared in COMPARED.items():
        spent = {name: _spent(files, part, name) for _, _, name in compared}
        first = next((seconds for seconds in spent.values() if seconds), None)
        for model, words, name in compared:
            seconds, auc = spent[name], _spent(files, part, name, "auc")
            if seconds is not None and auc is not None and first is not None:
                difference = f"{auc - files[part]['bar']:+.4f}"
                rows.append([model, words, f"{auc:.4f}", difference, figure(seconds), f"{figure(seconds / first)} x"])
    heads = ["model", "system", "AUC", "AUC minus pooled", "processor seconds", "ratio"]
    return f"\n{_table(heads, rows, left=2)}\n"


def _wanted(files: dict[str, Any]) -> str:
    """Return the target, and the result."""
    rows = []
    ours, theirs = _spent(files, "linear", "ours-cheapest"), _spent(files, "linear", "secretflow-cheetah")
    if ours and theirs:
        what = "CHEETAH's processor seconds to ours, the cheapest settings"
        rows.append([what, figure(theirs / ours), ">= 10", _met(theirs / ours >= 10)])
        work = [_spent(files, "linear", name, "work_cpu_s") for name in ("secretflow-cheetah", "ours-cheapest")]
        if work[0] and work[1]:
            rows.append(["the same of the work alone", figure(work[0] / work[1]), "", ""])
    if (spent := _spent(files, "linear", "ours-default")) is not None:
        rows.append(["the job of one line on default_credit, processor s", figure(spent), "<= 4", _met(spent <= 4)])
    ours, theirs = _spent(files, "psi", "ours-align"), _spent(files, "psi", "spu-rr22")
    if ours and theirs:
        rows.append(["ours to RR22's at 1,000,000 ids a side", figure(ours / theirs), "<= 1", _met(ours / theirs <= 1)])
    return f"\n{_table(['', 'measured', 'wanted', 'met'], rows)}\n"


def _met(holds: bool) -> str:
    return "yes" if holds else "missed"


PAGE_SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "linear": _trained("linear"),
    "trees": _trained("trees"),
    "wide": _trained("wide"),
    "psi": _psi,
    "gradient": _gradient,
    "published": _published,
    "reads": _reads,
    "speed": _speed,
    "wanted": _wanted,
}
