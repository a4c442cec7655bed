"""Deletes what trainings have left at a party, and never what counts what it has told.

What is deleted: the party's part of a model, its states, its work ahead, the row order, what an alignment that broke
off has kept, the copy of a large table, and logs that are named. What is kept: the disclosure ledger and the files
beside it, of what was told, which rows were scored and which work ahead is spent. Without them limits would begin anew,
and masks put back from a backup would be used twice.

A file is deleted only if it is what its name says. Deleting takes the name and frees the place; it does not overwrite
the disk, nor does it reach backups.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from securevfl.base.file_locks import exclusive_lock
from securevfl.data.row_order import rows_path
from securevfl.data.store import table_path
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.training.model_part import ModelPart

_SCHEMA = b'"schema": "securevfl.part/'
_KEY = "[0-9a-f]{16}"
_STATE = rf"\.?NAME\.({_KEY})\.(round-\d+|begun|final)\.json(\.\d+)?"
_AHEAD = re.compile(r"\.?chunk-\d+\.(ready|bound|spent)(\.\d+)?|lock")
_JOURNAL = re.compile(r"\.?\w+\.\d+\.chunk(\.\d+)?")
_KEPT = "what was told stays told: without it limits begin anew, rows are scored again, and masks could be used twice"


@dataclass(frozen=True)
class TrainingFiles:
    """The places where a party's trainings on a table leave files.

    model: its part. states, ahead: the folders that its states and its work ahead are in, with those of other jobs.
    """

    party: str
    data: Path
    model: Path
    states: Path
    ahead: Path
    logs: Sequence[Path] = ()


@dataclass
class DeletionReport:
    """What was deleted, and what was kept, each with what it is or why."""

    deleted: list[tuple[Path, str]] = field(default_factory=list)
    kept: list[tuple[Path, str]] = field(default_factory=list)


def forget(left: TrainingFiles, ledger: DisclosureLedger, *, every: bool = False) -> DeletionReport:
    """Delete what the training of this part has left; with `every`, what all of the party's trainings on the table have
    left, those too that were cut off. Again, it deletes what is there by then.

    ConfigError, and nothing is deleted, while a command has the model or the table in use or a training of this party
    is on, or if a file is not what its name says.
    """
    key = _key_of(left) if left.model.exists() else ""
    for log in left.logs:
        _check_log(log)
    if ledger.has_active_session:
        raise ConfigError(f"{left.party}: no training that is on was expected, its ledger has one; stop it, or wait")
    with ExitStack() as held:
        for path in (left.data, left.model, *(folder / "lock" for folder in left.ahead.glob(f"{left.party}.*"))):
            held.enter_context(exclusive_lock(path))
        return _delete(left, key, every, ledger)


def _delete(left: TrainingFiles, key: str, every: bool, ledger: DisclosureLedger) -> DeletionReport:
    found, others = DeletionReport(), set[str]()
    state = re.compile(_STATE.replace("NAME", re.escape(left.party)))
    for path in _files(left.states):
        named = state.fullmatch(path.name)
        if named and (every or named[1] == key):
            _unlink(found, path, "state of a training: weights or shares of them")
        elif named:
            others.add(named[1])
    _remove(left.states)
    for folder in sorted(left.ahead.glob(f"{left.party}.*")):
        own = folder.name.removeprefix(f"{left.party}.")
        if re.fullmatch(_KEY, own) and (every or own == key):
            _empty(found, folder, _AHEAD, "work ahead: masks")
        elif re.fullmatch(_KEY, own) and any(path.suffix == ".ready" for path in _files(folder)):
            others.add(own)
    _remove(left.ahead)
    what = "1 more training has" if len(others) == 1 else f"{len(others)} more trainings have"
    why = f"{what} left work on this table; --all forgets it"
    found.kept += [(folder, why) for folder in (left.states, left.ahead) if others and folder.exists()]
    of_table = {
        rows_path(left.data): "row order: which of your rows all parties have",
        table_path(left.data): "copy of your table",
    }
    for path, what in of_table.items():
        if others and path.exists():
            found.kept.append((path, why))
        else:
            _unlink(found, path, what)
    _empty(found, Path(f"{left.data}.align"), _JOURNAL, "an alignment that broke off: its secrets")
    for log in left.logs:
        _unlink(found, log, "log")
    _unlink(found, left.model, "part of the model: weights or shares, some hundred quantiles of each of your columns")
    if left.data.exists():
        found.kept.append((left.data, "your table"))
    if ledger.path.exists():
        found.kept.append((ledger.path, f"and the files beside it: {_KEPT}"))
    return found


def _key_of(left: TrainingFiles) -> str:
    """Return the key that the states and the work ahead of this part are filed under, in hex; an empty one for a part
    that is damaged, which fits no training. ConfigError if the file is no part, or another party's."""
    try:
        part = ModelPart.load(left.model)
    except DataError:
        if _SCHEMA not in left.model.read_bytes():
            raise ConfigError(f"{left.model}: a part of a model was expected, it is none; name its file") from None
        return ""
    if part.name != left.party:
        raise ConfigError(f"{left.model}: the part of {left.party} was expected, it is {part.name}'s; name its own")
    key = hashlib.sha256(Job.from_dict(part.job).digest + bytes.fromhex(part.data)).hexdigest()
    return key[:16]


def _check_log(log: Path) -> None:
    """ConfigError unless each line of this file, if there is one, is an event."""
    if not log.exists():
        return
    with suppress(OSError, ValueError, TypeError), log.open(encoding="utf-8") as lines:
        if all({"time", "event", "party"} <= json.loads(line).keys() for line in lines):
            return
    raise ConfigError(f"{log}: a log was expected, a line of JSON an event, it is none; name the right file")


def _files(folder: Path) -> Iterator[Path]:
    return iter(sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else ())


def _empty(found: DeletionReport, folder: Path, names: re.Pattern[str], what: str) -> None:
    """Delete the files of these names in a folder, and the folder if nothing else is in it."""
    before = len(found.deleted)
    for path in _files(folder):
        if names.fullmatch(path.name):
            _unlink(found, path, what)
    del found.deleted[before + 1 :]
    if len(found.deleted) > before:
        found.deleted[before] = (folder, what)
    _remove(folder)
    if folder.exists():
        found.kept.append((folder, "other files are in it"))


def _unlink(found: DeletionReport, path: Path, what: str) -> None:
    if path.exists():
        path.unlink()
        found.deleted.append((path, what))


def _remove(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
