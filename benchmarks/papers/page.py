"""docs/results.md and its pictures, from the JSON files of the results alone.

`python -m benchmarks.papers page` draws them again; tests/papers checks that the page agrees with the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.papers import origin
from benchmarks.papers.page_cells import Part, Row
from benchmarks.papers.page_celu import (
    celu_cosines,
    celu_line,
    celu_long,
    celu_rounds,
    celu_sealed,
    celu_seconds,
    celu_small,
    celu_steps,
    celu_sweep,
)
from benchmarks.papers.page_fdml import fdml_auc, fdml_noise, fdml_order, fdml_slowness, fdml_stored, fdml_time
from benchmarks.papers.page_fdskl import fdskl_errors, fdskl_progress, fdskl_scaling
from benchmarks.papers.page_fedbcd import fedbcd_linear, fedbcd_loss, fedbcd_mnist, fedbcd_rule, fedbcd_turns
from benchmarks.papers.page_ftl import (
    ftl_fate,
    ftl_many,
    ftl_overlap,
    ftl_paper,
    ftl_round_costs,
    ftl_small,
    ftl_step,
    ftl_table2,
    ftl_totals,
)
from benchmarks.papers.pictures import draw

PAGE_HEAD = """# The papers' tables

`python -m benchmarks.papers page` generates this page from the files in `benchmarks/papers/results`; nobody types a
figure. `make results` runs all experiments again, which takes hours, and `make results PART=ftl` or `PART=ftl/small`
one paper or one part; an interrupted command resumes. The [list of the papers' tables](papers.md) names the command of
each one.

Each section ends with its origin: the commit whose code computed it, the date, the seeds and the machine. *Stored by
commit* marks a section that was computed before the latest changes of the code and not again; its figures may differ
from those of today's code. A test computes a small version of every part again (a sample on generated tables, in
seconds), and fails if its figures are no longer those of the commit that the section names as the sample's. The test
notices later changes of the code. It does not check the figures of this page, and it does not protect a section from
changes that are older than its sample.

*Own step*: each method has the step that is best for it, on validation rows that this split does not report. *One
step*: all have the step that is best for all of them together on those rows. One choice serves all splits, so what one
split reports may have been another's validation rows. Rounds are means over all splits and starts with sample
deviations; if some starts do not reach the target, the cell has the median and the number of starts that do, and a dash
if fewer than half of them do. Rows of one start for each split have a dash as soon as one split misses the target.
Seconds and bytes under encryption are those of the median of the rounds. Seconds are virtual, at 300 Mbps and 20 ms
unless stated otherwise. Machines were busy, so seconds of computing are too high.
"""


def write(results: Path, page: Path) -> None:
    """Write the page, and its pictures."""
    page.write_text(text(results), encoding="utf-8")
    pictures(results, page.parent / "figures")


def text(results: Path) -> str:
    """Return the page."""
    parts = [PAGE_HEAD]
    for paper, (title, sections) in PAPER_PAGES.items():
        file = results / f"{paper}.json"
        if not file.is_file():
            continue
        result = json.loads(file.read_text(encoding="utf-8"))
        parts.append(f"\n## {title}\n\n```sh\npython -m benchmarks.papers {paper} --data ../shared/data\n```\n")
        for name, part in result.items():
            if name in sections:
                parts.append(f"\n{sections[name](part)}\n{origin.words(part['origin'], part['sample'])}\n")
        if paper == "ftl" and {"table2", "costs"} <= result.keys():
            rows = [row for name in ("costs", "paillier") if name in result for row in result[name]["rows"]]
            parts.append(f"\n{ftl_totals(rows, result['table2'])}")
        if paper == "celu" and {"long", "seconds"} <= result.keys():
            parts.append(f"\n{celu_line(result)}")
        if lacking := [f"`--only {name}`" for name in sections if name not in result]:
            parts.append(f"\nNot run to its end here: {', '.join(lacking)}.\n")
    return "".join(parts)


Section = Callable[[Part], str]


PAPER_PAGES: dict[str, tuple[str, dict[str, Section]]] = {
    "fedbcd": (
        "FedBCD",
        {
            "linear": fedbcd_linear,
            "turns": fedbcd_turns,
            "loss": fedbcd_loss,
            "mnist": fedbcd_mnist,
            "rule": fedbcd_rule,
        },
    ),
    "celu": (
        "CELU-VFL",
        {
            "rounds": celu_rounds,
            "steps": celu_steps,
            "long": celu_long,
            "small": celu_small,
            "sweep": celu_sweep,
            "sealed": celu_sealed,
            "cosines": celu_cosines,
            "seconds": celu_seconds,
        },
    ),
    "fdml": (
        "FDML",
        {
            "auc": fdml_auc,
            "slowness": fdml_slowness,
            "order": fdml_order,
            "time": fdml_time,
            "stored": fdml_stored,
            "noise": fdml_noise,
        },
    ),
    "fdskl": ("FDSKL", {"errors": fdskl_errors, "scaling": fdskl_scaling, "progress": fdskl_progress}),
    "ftl": (
        "Transfer learning",
        {
            "credit": ftl_paper,
            "small": ftl_small,
            "fate": ftl_fate,
            "many": ftl_many,
            "overlap": ftl_overlap,
            "table2": ftl_table2,
            "costs": ftl_round_costs,
            "paillier": ftl_round_costs,
            "step": ftl_step,
        },
    ),
}


def pictures(results: Path, folder: Path) -> None:
    """Draw the pictures of the existing results."""
    for (paper, part, name), lines in CURVES.items():
        file = results / f"{paper}.json"
        text = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if part in text:
            series, x, y, log = lines(text[part]["rows"])
            draw(folder / f"{name}.svg", series, x=x, y=y, log=log)


Lines = tuple[dict[str, list[tuple[float, float]]], str, str, bool]


def _by_q(rows: Sequence[Row]) -> Lines:
    selected = [row for row in rows if row["parties"] == 2 and row["algorithm"] != "FedBCD-s"]
    series = {}
    for decay, words in (("none", "constant"), ("sqrt_t", "eta0 / sqrt(t + 1)")):
        for key, step in (("rounds", "own step"), ("one_rounds", "one step")):
            points = [(row["q"], row[key]) for row in selected if row["decay"] == decay and row[key] is not None]
            series[f"{words}, {step}"] = points
    return series, "local steps Q", "rounds", True


def _curves(label: Callable[[Row], str]) -> Callable[[Sequence[Row]], Lines]:
    def lines(rows: Sequence[Row]) -> Lines:
        return {label(row): [(a, b) for a, b in row["curve"]] for row in rows}, "rounds", "held-out AUC", False

    return lines


def _losses(rows: Sequence[Row]) -> Lines:
    series = {f"{row['algorithm']}, Q = {row['q']}": [(a, b) for a, b in row["curve"]] for row in rows}
    return series, "rounds", "loss on held-out rows", False


def _slow(rows: Sequence[Row]) -> Lines:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for key, words in (("of_in_step", "simulated"), ("queue_of_in_step", "queue model")):
            if row["rtt_ms"] >= 1:
                series.setdefault(f"{row['parties']} parties, {words}", []).append((row["tau"], row[key]))
    return series, "tau", "share of the time in step", False


def _scale(rows: Sequence[Row]) -> Lines:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["method"], []).append((row["rows"], row["cpu_s"]))
    return series, "training rows", "processor seconds", True


def _progress(rows: Sequence[Row]) -> Lines:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["method"], []).append((row["cpu_s"], row["error"]))
    return series, "processor seconds", "test error", False


CURVES: dict[tuple[str, str, str], Callable[[Sequence[Row]], Lines]] = {
    ("fedbcd", "linear", "fedbcd-q"): _by_q,
    ("fedbcd", "loss", "fedbcd-loss"): _losses,
    ("fedbcd", "mnist", "fedbcd-mnist"): _curves(lambda row: f"{row['algorithm']}, Q = {row['q']}"),
    ("celu", "rounds", "celu"): _curves(lambda row: row["method"]),
    ("fdml", "slowness", "fdml-slowness"): _slow,
    ("fdskl", "scaling", "fdskl-scaling"): _scale,
    ("fdskl", "progress", "fdskl-progress"): _progress,
}
