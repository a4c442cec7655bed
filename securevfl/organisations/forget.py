"""Delete the files that trainings have left at a party, but never the records of its disclosures.

Deleted are the party's part of a model, its checkpoints and those of a search for values of options, its preprocessed
material (random numbers computed before the training), the row order, the journal of an alignment, the copy of a large
table, and the logs that the caller lists. Retained are the disclosure ledger and the files next to it. Without them
limits would start from zero, and masks from a backup would be used twice.

A file is deleted only if its content matches its name. Deletion removes the name and releases the space. It does not
overwrite the disk, and it does not reach backups.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from securevfl.base.file_locks import exclusive_lock
from securevfl.data.row_order import rows_path
from securevfl.data.store import table_path
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, DataError
from securevfl.families import FAMILIES
from securevfl.families.run_files import RunFile
from securevfl.job import Job
from securevfl.training.model_part import ModelPart, replaced_files
from securevfl.untrusted import parse_json

_PART_SCHEMA_PREFIX = b'"schema": "securevfl.part/'
_KEY = "[0-9a-f]{16}"
_CHECKPOINT = rf"\.?NAME\.({_KEY})\.(round-\d+|begun|final|evaluations)\.json(\.\d+)?"
_JOURNAL = RunFile(r"\w+\.\d+\.chunk", "journal of an interrupted alignment: its secrets")
_RETAINED = (
    "they record disclosures, which cannot be undone; without them limits start from zero, rows could be scored "
    "again, and masks could be used twice"
)


@dataclass(frozen=True)
class TrainingFiles:
    """The paths where a party's trainings on a table leave files.

    Attributes:
        party: name of the party.
        data: the table.
        model: the party's part of the model.
        checkpoints: the folder of its checkpoints, perhaps with those of other jobs.
        preprocessing: the folder of its preprocessed material, perhaps with that of other jobs.
        logs: logs to delete.
    """

    party: str
    data: Path
    model: Path
    checkpoints: Path
    preprocessing: Path
    logs: Sequence[Path] = ()


@dataclass
class DeletionReport:
    """Which files were deleted, each with a description, and which were retained, each with a reason."""

    deleted: list[tuple[Path, str]] = field(default_factory=list)
    retained: list[tuple[Path, str]] = field(default_factory=list)


def forget(files: TrainingFiles, ledger: DisclosureLedger, *, every: bool = False) -> DeletionReport:
    """Delete the files that one training has left, given the model part in `files.model`.

    It can be called again, for example after a new training with the same paths.

    Args:
        files: the paths at which the party's trainings leave files.
        ledger: the party's ledger.
        every: also delete the files of all other trainings of the party on the table, including interrupted ones.

    Returns:
        The deleted and the retained paths.

    Raises:
        ConfigError: a command uses the model or the table, a training of this party is running, or the content of a
            file does not match its name. Nothing has been deleted then.
    """
    key = _key_of(files) if files.model.exists() else ""
    for log in files.logs:
        _check_log(log)
    if ledger.has_active_session:
        raise ConfigError(
            f"a training of {files.party} is running",
            "stop it, or wait until it has finished",
            code="SVFL-FILE-IN-USE",
            party=files.party,
        )
    with ExitStack() as locks:
        preprocessing_locks = (folder / "lock" for folder in files.preprocessing.glob(f"{files.party}.*"))
        for path in (files.data, files.model, *preprocessing_locks):
            locks.enter_context(exclusive_lock(path))
        return _delete(files, key, every, ledger)


def _delete(files: TrainingFiles, key: str, every: bool, ledger: DisclosureLedger) -> DeletionReport:
    report, other_keys = DeletionReport(), set[str]()
    checkpoint = re.compile(_CHECKPOINT.replace("NAME", re.escape(files.party)))
    search = Path(f"{files.data}.search")
    for path in [*_files(files.checkpoints), *_files(search)]:
        match = checkpoint.fullmatch(path.name)
        if match and (every or match[1] == key):
            _unlink(report, path, "checkpoint of a training: weights or shares of them")
        elif match:
            other_keys.add(match[1])
    _remove(files.checkpoints)
    _delete_search(report, search, files.party, checkpoint)
    for folder in sorted(files.preprocessing.glob(f"{files.party}.*")):
        folder_key = folder.name.removeprefix(f"{files.party}.")
        if re.fullmatch(_KEY, folder_key) and (every or folder_key == key):
            _empty(report, folder, _run_files())
        elif re.fullmatch(_KEY, folder_key) and any(_is_declared(path) for path in _files(folder)):
            other_keys.add(folder_key)
    _remove(files.preprocessing)
    others = "1 more training has" if len(other_keys) == 1 else f"{len(other_keys)} more trainings have"
    reason = f"{others} left files for this table; --all deletes them"
    folders = (files.checkpoints, search, files.preprocessing)
    report.retained += [(folder, reason) for folder in folders if other_keys and folder.exists()]
    table_files = {
        rows_path(files.data): "row order: which of your rows all parties have",
        table_path(files.data): "copy of your table",
    }
    for path, description in table_files.items():
        if other_keys and path.exists():
            report.retained.append((path, reason))
        else:
            _unlink(report, path, description)
        _delete_drafts(report, path, description)
    _empty(report, Path(f"{files.data}.align"), [_JOURNAL])
    for log in files.logs:
        _unlink(report, log, "log")
    description = "part of the model: weights or shares, and some hundred quantiles of each of your columns"
    _unlink(report, files.model, description)
    _delete_drafts(report, files.model, description)
    for path in replaced_files(files.model):
        if every and _is_part_of(path, files.party):
            _unlink(report, path, f"replaced {description}")
        else:
            report.retained.append((path, "model of another training; --all deletes it"))
    if files.data.exists():
        report.retained.append((files.data, "your table"))
    if ledger.path.exists():
        report.retained.append((ledger.path, f"and the files next to it: {_RETAINED}"))
    return report


def _delete_search(report: DeletionReport, folder: Path, party: str, checkpoint: re.Pattern[str]) -> None:
    """Delete the record of a party's interrupted search, unless checkpoints of its trainings still exist.

    Args:
        report: the report, which is extended.
        folder: the folder of the search.
        party: name of the party.
        checkpoint: the pattern of the names of the party's checkpoints.
    """
    if not any(checkpoint.fullmatch(path.name) for path in _files(folder)):
        record = re.compile(rf"\.?{re.escape(party)}\.{_KEY}\.search\.json(\.\d+)?")
        for path in _files(folder):
            if record.fullmatch(path.name):
                _unlink(report, path, "name of an interrupted search")
    _remove(folder)


def _key_of(files: TrainingFiles) -> str:
    """Return the hexadecimal key that is in the file names of the training's checkpoints and preprocessed material.

    If the part of the model is damaged, the key is empty and matches no file.

    Args:
        files: the files of the training.

    Returns:
        The key in hexadecimal; empty if the part is damaged.

    Raises:
        ConfigError: the file is not a part of a model, or belongs to another party.
    """
    try:
        part = ModelPart.load(files.model)
    except DataError:
        if _PART_SCHEMA_PREFIX not in files.model.read_bytes():
            raise ConfigError(
                f"{files.model} is not a part of a model",
                "name the file of your part",
                code="SVFL-FILE-WRONG-KIND",
                path=str(files.model),
            ) from None
        return ""
    if part.name != files.party:
        raise ConfigError(
            f"{files.model} is the part of {part.name}, not of {files.party}",
            "name the file of your part",
            code="SVFL-FILE-WRONG-KIND",
            path=str(files.model),
        )
    key = hashlib.sha256(Job.from_dict(part.job).digest + bytes.fromhex(part.data)).hexdigest()
    return key[:16]


def _check_log(log: Path) -> None:
    """Raise ConfigError if a line of this file is not an event; a file that does not exist is accepted."""
    if not log.exists():
        return
    with suppress(OSError, ValueError, TypeError, AttributeError), log.open("rb") as lines:
        if all({"time", "event", "party"} <= parse_json(line).keys() for line in lines):
            return
    raise ConfigError(
        f"{log} is not a log, which has one event in JSON per line",
        "name the right file",
        code="SVFL-FILE-WRONG-KIND",
        path=str(log),
    )


def _files(folder: Path) -> Iterator[Path]:
    return iter(sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else ())


def _run_files() -> list[RunFile]:
    """Return the declarations of files with preprocessed material, of all protocol families."""
    return [file for family in FAMILIES.values() for file in family.run_files]


def _is_declared(path: Path) -> bool:
    """Return whether the name of a file matches a declaration. Lock files hold no data and do not count."""
    return path.name != "lock" and any(file.matches(path.name) for file in _run_files())


def _is_part_of(path: Path, party: str) -> bool:
    """Return whether a file is a part of a model of this party."""
    try:
        return ModelPart.load(path).name == party
    except DataError:
        return _PART_SCHEMA_PREFIX in path.read_bytes()


def _empty(report: DeletionReport, folder: Path, declared: Sequence[RunFile]) -> None:
    """Delete the files in a folder whose names match a declaration, and then the folder itself if it is empty."""
    contents = dict[str, None]()
    for path in _files(folder):
        for file in declared:
            if file.matches(path.name):
                path.unlink()
                contents[file.content] = None
                break
    if contents:
        report.deleted.append((folder, "; ".join(contents)))
    _remove(folder)
    if folder.exists():
        report.retained.append((folder, "it contains other files"))


def _unlink(report: DeletionReport, path: Path, description: str) -> None:
    if path.exists():
        path.unlink()
        report.deleted.append((path, description))


def _delete_drafts(report: DeletionReport, path: Path, description: str) -> None:
    """Delete temporary files and folders of processes that were killed while they wrote the file `path`."""
    draft = re.compile(rf"\.{re.escape(path.name)}\.(\d+|\w+\.parts)")
    for other in sorted(path.parent.iterdir() if path.parent.is_dir() else ()):
        if not draft.fullmatch(other.name):
            continue
        if other.is_dir():
            shutil.rmtree(other)
        else:
            other.unlink()
        report.deleted.append((other, f"unfinished {description}"))


def _remove(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
