"""`python -m benchmarks.papers PAPER[/PART]`: run experiments, store the rows, draw the page. See the package."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.papers.origin import is_current, origin
from benchmarks.papers.samples import sample
from benchmarks.papers.study import Part, Runs

PAPERS = ("fedbcd", "celu", "fdml", "fdskl", "ftl")
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    options.add_argument(
        "paper",
        metavar="PAPER[/PART]",
        help=f"{', '.join(PAPERS)}, or all of them; PAPER/PART for one part; page draws docs/results.md only",
    )
    options.add_argument("--data", type=Path, help="the folder of the real tables; needed without --quick")
    options.add_argument("--quick", action="store_true", help="everything small, on generated tables")
    options.add_argument("--only", metavar="PART", help="one part of a paper's experiments")
    options.add_argument("--resume", action="store_true", help="skip parts that the sources of this checkout computed")
    options.add_argument("--splits", type=int, metavar="N", help="number of splits in place of the plan's")
    options.add_argument("--out", type=Path, help="file of the rows; default: results/<paper>.json of the package")
    arguments = options.parse_args(words)
    chosen, _, part = arguments.paper.partition("/")
    if chosen not in (*PAPERS, "all", "page"):
        options.error(f"choose a paper from {', '.join(PAPERS)}, or all, or page")
    if chosen != "page":
        if not arguments.quick and arguments.data is None:
            options.error("pass the folder of the real tables as --data, or add --quick")
        if chosen == "all" and (arguments.out is not None or arguments.only or part):
            options.error("--out and parts need the name of one paper")
        for paper in PAPERS if chosen == "all" else (chosen,):
            run(
                paper,
                None if arguments.quick else arguments.data,
                quick=arguments.quick,
                only=arguments.only or part or None,
                splits=arguments.splits,
                out=arguments.out or (None if arguments.quick else RESULTS / f"{paper}.json"),
                resume=arguments.resume,
            )
        if arguments.quick or arguments.out is not None:
            return
    from benchmarks.papers import page

    page.write(RESULTS, PAGE)


def run(
    paper: str,
    data: Path | None,
    *,
    quick: bool,
    only: str | None = None,
    splits: int | None = None,
    out: Path | None = None,
    resume: bool = False,
) -> None:
    """Run the parts of a paper and write the rows of each part when it is done; other parts remain as they were.

    Runs of an unfinished part are stored in a file next to `out`, which is removed at its end; they are not repeated.
    With `resume`, parts whose stored rows were computed by the sources of this checkout are not repeated either.
    """
    parts: dict[str, Part] = import_module(f"benchmarks.papers.{paper}").PARTS
    if only is not None and only not in parts:
        raise SystemExit(f"--only: unknown part {only}; choose from {', '.join(parts)}")
    known: dict[str, Any] = json.loads(out.read_text()) if out is not None and out.is_file() else {}
    for name, part in parts.items():
        if only not in (None, name):
            continue
        if resume and name in known and is_current(known[name]):
            print(f"{paper}, {name}: computed by these sources already")
            continue
        plan = part.quick if quick else part.full
        if splits is not None:
            plan = with_splits(plan, splits)
        stored = None if out is None else out.with_name(f"{out.stem}-{name}{'-quick' if quick else ''}.jsonl")
        runs = Runs(partial(print, f"{name}:", file=sys.stderr, flush=True), stored)
        with threadpool_limits(1):
            rows = part.run(data, plan, runs)
        known[name] = {"plan": asdict(plan), "quick": quick, "origin": origin(plan), "rows": rows}
        if not quick:
            known[name]["sample"] = sample(part, known[name]["origin"])
        print(f"{paper}, {name}: {len(rows)} rows")
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            ordered = {key: known[key] for key in parts if key in known}
            out.write_text(json.dumps(ordered, indent=1, allow_nan=False) + "\n")
        runs.forget()


def with_splits(plan: Any, splits: int) -> Any:
    """Return the plan with this number of splits, wherever it has one."""
    if isinstance(plan, tuple):
        return tuple(with_splits(field, splits) for field in plan)
    if not is_dataclass(plan):
        return plan
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return type(plan)(**{k: splits if k == "splits" else with_splits(v, splits) for k, v in values.items()})


if __name__ == "__main__":
    main()
