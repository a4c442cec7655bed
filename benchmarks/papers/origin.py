"""How a part of the results was computed: commit, date, seeds and machine, and whether its code has changed since.

No name of a host and no path is recorded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securevfl.bench.result_file import machine

CHECKOUT = Path(__file__).parents[2]
SOURCES = (
    *("securevfl", "crypto", "protocols", "benchmarks/papers", "benchmarks/tables.py"),
    *(
        f":!benchmarks/papers/{name}"
        for name in ("results", "page*", "pictures.py", "origin.py", "samples.py", "__main__.py")
    ),
)
"""The code that decides what a part computes, as paths of git: not the pages, and not this module."""
UNKNOWN = "unknown"
SPLIT_FIELDS = ("splits", "seeds")


def origin(plan: Any) -> dict[str, Any]:
    """Describe a run of this plan that begins now.

    Args:
        plan: the plan of a part, from whose fields the numbers of splits and random starts are read.

    Returns:
        `commit` of the checkout (with `+` if its sources differ from the commit; "unknown" without git), `date`,
        `splits` and `starts` (numbers of seeds, which count from 0; `starts` is None if each split has one start, with
        the split's seed), and processor, cores, memory, Python and versions of the machine.
    """
    computer = machine()
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "splits": max((value for name, value in _numbers(plan) if name in SPLIT_FIELDS), default=1),
        "starts": max((value for name, value in _numbers(plan) if name == "starts"), default=None),
        "processor": computer["processor"],
        "cores": computer["cores"],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": computer["python"],
        "versions": computer["versions"],
    }


def checked(begun: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of a run that ends now, from its origin when it began.

    If the sources changed during the run, no commit computed it, and a `+` follows the commit. `load` is the
    system's load average of the last 15 minutes: other programs disturb measured seconds.
    """
    commit = str(begun["commit"])
    changed = not commit.endswith("+") and commit != UNKNOWN and bool(_git("diff", commit, "--", *SOURCES))
    return {**begun, "commit": f"{commit}+" if changed else commit, "load": round(os.getloadavg()[2], 1)}


def sources() -> str:
    """Return a name for the sources of this checkout: the commit, and a digest of uncommitted changes."""
    commit = _commit()
    if not commit.endswith("+"):
        return commit
    return f"{commit[:-1]}-{hashlib.sha256(_git('diff', 'HEAD', '--', *SOURCES).encode()).hexdigest()[:8]}"


def is_current(part: Mapping[str, Any]) -> bool:
    """Return whether a stored part was computed by the sources of this checkout."""
    commit = str(part["origin"]["commit"])
    if part["origin"].get("stored_only") or commit.endswith("+"):
        return False
    try:
        return not _git("diff", commit, "--", *SOURCES)
    except (OSError, subprocess.CalledProcessError):  # the commit is not in this clone
        return False


def words(origin: Mapping[str, Any], sample: Mapping[str, Any]) -> str:
    """Return the sentences of the page about one part and its sample.

    The origin of a part that is stored only may have a `reason` why it was not computed again.
    """
    splits, starts = origin["splits"], origin["starts"]
    one = "one split" if splits == 1 else f"splits 0 to {splits - 1}"
    seeds = f"{one}, {starts} random starts each" if starts else f"{one}, one random start each"
    computer = f"{origin['processor']}, {origin['cores']} cores"
    since = "" if sample["commit"] == origin["commit"] else f" Its sample is of commit {sample['commit']}."
    if origin.get("stored_only"):
        memory = f", {origin['memory_gb']} GB of memory" if "memory_gb" in origin else "; its memory was not recorded"
        reason = f", because {origin['reason']}" if "reason" in origin else ""
        return (
            f"*Stored by commit {origin['commit']} on {origin['date']}, and not computed again since{reason}: today's "
            f"code may give other figures. {seeds.capitalize()}. {computer}{memory}.{since}*"
        )
    load = f" Load average of the last 15 minutes: {origin['load']:g}." if "load" in origin else ""
    return (
        f"*Computed by commit {origin['commit']} on {origin['date']}. {seeds.capitalize()}. {computer}, "
        f"{origin['memory_gb']} GB of memory, Python {origin['python']}.{load}{since}*"
    )


def _numbers(plan: Any) -> Iterator[tuple[str, int]]:
    """Yield all integer fields of a plan and of the plans in it."""
    if isinstance(plan, tuple):
        for item in plan:
            yield from _numbers(item)
    elif is_dataclass(plan):
        for field in fields(plan):
            value = getattr(plan, field.name)
            if isinstance(value, int):
                yield field.name, value
            else:
                yield from _numbers(value)


def _commit() -> str:
    try:
        commit = _git("rev-parse", "--short=8", "HEAD")
        return f"{commit}+" if _git("diff", "HEAD", "--", *SOURCES) else commit
    except (OSError, subprocess.CalledProcessError):  # a copy of the files without their history
        return UNKNOWN


def _git(*words: str) -> str:
    """Return the output of a git command in the checkout."""
    program = shutil.which("git") or "git"
    done = subprocess.run([program, "-C", str(CHECKOUT), *words], check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()
