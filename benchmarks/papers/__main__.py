"""`python -m benchmarks.papers PAPER[/PART]`: run experiments, store the rows, draw the page. See the package."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.papers.origin import checked, is_current, origin, sources
from benchmarks.papers.samples import compute, differences, sample
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
    options.add_argument("--samples", action="store_true", help="compute the samples of stored parts again, no rows")
    options.add_argument("--splits", type=int, metavar="N", help="number of splits in place of the plan's")
    options.add_argument("--out", type=Path, help="file of the rows; default: results/<paper>.json of the package")
    arguments = options.parse_args(words)
    chosen, _, part = arguments.paper.partition("/")
    if chosen not in (*PAPERS, "all", "page"):
        options.error(f"choose a paper from {', '.join(PAPERS)}, or all, or page")
    if chosen != "page" and arguments.samples:
        for paper in PAPERS if chosen == "all" else (chosen,):
            renew_samples(paper, RESULTS / f"{paper}.json", only=arguments.only or part or None)
    elif chosen != "page":
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
    The name of the file contains the commit, so that runs of other sources are not used.
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
        begun = origin(plan)
        files = f"{out.stem}-{name}{'-quick' if quick else ''}" if out is not None else ""
        stored = None if out is None else out.with_name(f"{files}-{sources()}.jsonl")
        runs = Runs(partial(print, f"{name}:", file=sys.stderr, flush=True), stored)
        with threadpool_limits(1):
            rows = part.run(data, plan, runs)
        known[name] = {"plan": asdict(plan), "quick": quick, "origin": checked(begun), "rows": rows}
        if not quick:
            known[name]["sample"] = sample(part, known[name]["origin"])
        print(f"{paper}, {name}: {len(rows)} rows")
        if out is not None:
            _write(out, {key: known[key] for key in parts if key in known})
        runs.forget()


def renew_samples(paper: str, out: Path, *, only: str | None = None) -> None:
    """Compute the samples of the stored parts of a paper again, after a change of a small plan or a tolerance.

    A part whose stored sample differs from the new one keeps its rows, and the page states from then on that they were
    not computed again.
    """
    parts: dict[str, Part] = import_module(f"benchmarks.papers.{paper}").PARTS
    known: dict[str, Any] = json.loads(out.read_text())
    for name, stored in known.items():
        if only not in (None, name):
            continue
        begun = origin(None)
        renewed = sample(parts[name], begun)
        renewed["commit"] = checked(begun)["commit"]
        if differences(stored["sample"]["rows"], compute(parts[name])):
            stored["origin"]["stored_only"] = True
        stored["sample"] = renewed
        print(f"{paper}, {name}: sample of {len(renewed['rows'])} rows", flush=True)
        _write(out, known)


def _write(out: Path, parts: Mapping[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(parts, indent=1, allow_nan=False) + "\n")


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
