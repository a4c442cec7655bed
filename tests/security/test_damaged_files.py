"""A bit that has changed in a file that a party keeps is noticed when the file is read, and never computed with.

A flipped bit in a saved part moved predictions by .71, and the command ended well. KEPT has every kind of file that is
written to be read again; a test holds that there is no other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.checked_files import read_checked_json, write_checked_json
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.data.row_order import read_rows, write_rows
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import SecureVFLError
from securevfl.families.shares.shares_inputs import read_inputs
from securevfl.families.state import State
from securevfl.organisations.align import FolderJournal
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.spent_chunks import SpentChunks
from securevfl.training.checkpoint import Checkpoint, Checkpoints
from securevfl.training.model_part import ModelPart

ROOT = Path(__file__).parents[2]
JOB = bytes(32)


@dataclass(frozen=True)
class Kept:
    """A kind of file. write: makes one in a folder and returns its path. read: reads all of it back. remedy: what the
    error says to do."""

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    remedy: str


def _part() -> ModelPart:
    parties = [party.take(np.arange(120)) for party in vfl.datasets.breast_cancer()]
    job = vfl.Job(model=vfl.Logistic(), protocol="open", batch_size="all", epochs=1, accepts=["columns"])
    return vfl.simulate(job, parties).parts["shop"]


@pytest.fixture(scope="module")
def part() -> ModelPart:
    return _part()


def _write_part(folder: Path) -> Path:
    _part().save(folder / "shop.json")
    return folder / "shop.json"


def _write_state(folder: Path) -> Path:
    theta = np.random.default_rng(0).normal(size=(3, 2))
    Checkpoints(folder, "shop").save(
        JOB, Checkpoint(5, "run", [{"loss": 0.5}], {"shop": "ab"}, State(theta=theta, key=JOB))
    )
    return next(folder.iterdir())


def _write_inputs(folder: Path) -> Path:
    write_checked_json(folder / "inputs.json", State(values=np.arange(5.0), key=bytes(16)).plain())
    return folder / "inputs.json"


def _write_order(folder: Path) -> Path:
    return write_rows(folder / "shop.csv", np.random.default_rng(0).permutation(20))


def _write_chunk(folder: Path) -> Path:
    store = DiskStore(folder)
    store.put(0, b"name".ljust(16), 3, [b"first record", b"", b"third"])
    store.close()
    return folder / "chunk-0.ready"


def _read_chunk(path: Path) -> list[bytes]:
    """All records, of a file that was changed where it lies: a copy is another file, and thrown away."""
    (path.parent / "chunk-0.bound").unlink(missing_ok=True)
    store = _Bound(path.parent)
    try:
        return [store.peek(0, place) for place in range(3)]
    finally:
        store.close()


class _Bound(DiskStore):
    """A folder whose files pass as those that were written, as after a bit that a disk has lost."""

    def _is_bound(self, number: int) -> bool:
        return True


def _write_journal(folder: Path) -> Path:
    journal = FolderJournal(folder / "journal")
    journal.append("secrets", bytes(range(50)))
    return next((folder / "journal").iterdir())


def _ledger(folder: Path) -> DisclosureLedger:
    ledger = DisclosureLedger(folder / "shop.ledger", "shop")
    register = Register.of_ids(id_keys("shop", [range(40)]))
    ledger.record(register, ("run", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)])
    return ledger


def _write_row_set(folder: Path) -> Path:
    return next(_ledger(folder).rows.iterdir())


def _read_row_set(path: Path) -> Any:
    ledger = DisclosureLedger(path.parent.with_name("shop.ledger"), "shop")
    return ledger.counted_for(Register.of_ids(id_keys("shop", [range(30, 60)])))


def _write_names(folder: Path) -> Path:
    SpentChunks(folder / "names").spend(b"one".ljust(16))
    return folder / "names"


KEPT = [
    Kept("part", _write_part, ModelPart.load, "take it from a backup|reads? by|upgrade"),
    Kept("state", _write_state, lambda path: Checkpoints(path.parent, "shop").load(JOB, 5), "remove it to start anew"),
    Kept("inputs of work ahead", _write_inputs, read_inputs, "do the work anew"),
    Kept("chunk of work ahead", _write_chunk, _read_chunk, "remove it"),
    Kept("row order", _write_order, lambda path: read_rows(path.with_name("shop.csv"), of=20), "align again"),
    Kept("alignment", _write_journal, lambda path: FolderJournal(path.parent).chunk("secrets", 0), "align anew"),
    Kept(
        "ledger",
        lambda folder: _ledger(folder).path,
        lambda path: DisclosureLedger(path, "shop").read(),
        "copy|use that",
    ),
    Kept("rows of a ledger", _write_row_set, _read_row_set, "put a copy"),
    Kept("spent names", _write_names, lambda path: SpentChunks(path).contains(bytes(16)), "put a copy back"),
]


def damaged(whole: bytes) -> Iterator[bytes]:
    """Bits flipped all over the file, most at its ends; cuts; and more than was written."""
    draw = np.random.default_rng(len(whole))
    places = {
        *range(min(len(whole), 90)),
        *range(max(0, len(whole) - 90), len(whole)),
        *draw.integers(0, len(whole), 40),
    }
    for at in sorted(places):
        yield whole[:at] + bytes([whole[at] ^ 1 << int(draw.integers(8))]) + whole[at + 1 :]
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        yield whole[:cut]
    yield whole + b"\0"
    yield whole * 2


@pytest.mark.parametrize("kept", KEPT, ids=lambda each: each.name)
def test_a_file_that_is_no_longer_what_was_written_is_refused(
    kept: Kept, part: ModelPart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, with what to do; as it was written it is read."""
    monkeypatch.setitem(globals(), "_part", lambda: part)
    path = kept.write(tmp_path)
    whole = path.read_bytes()
    kept.read(path)
    for spoilt in damaged(whole):
        path.write_bytes(spoilt)
        if kept.name == "spent names" and whole.startswith(spoilt):
            continue  # the beginning of a line is one that was never told: tests/protocols/test_spent_names.py
        with pytest.raises(SecureVFLError, match=kept.remedy) as refused:
            kept.read(path)
        assert str(path) in str(refused.value)
    path.write_bytes(whole)
    kept.read(path)


def test_a_part_whose_weights_were_changed_predicts_nothing(part: ModelPart, tmp_path: Path) -> None:
    """The finding: one bit of a number in the file, which is good JSON before and after. Where the text of an earlier
    schema stands, a digest that is there counts all the same."""
    path = tmp_path / "shop.json"
    part.save(path)
    whole = path.read_bytes()
    digits = [match.start() for match in re.finditer(rb"(?<=\.)[0-8]", whole)]
    for at in digits[:: len(digits) // 20]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SecureVFLError, match=r"as it was written was expected.*take it from a backup"):
            ModelPart.load(path)
    path.write_bytes(whole.replace(b"securevfl.part/5", b"securevfl.part/4"))
    with pytest.raises(SecureVFLError, match="as it was written was expected"):
        ModelPart.load(path)
    path.write_bytes(whole)
    state, _ = read_checked_json(path)
    path.write_text(json.dumps(state | {"schema": "securevfl.part/4"}))  # as an earlier version wrote it
    assert ModelPart.load(path).columns == part.columns


WRITERS = re.compile(r"\b(write_whole|writing_whole|write_checked|write_checked_json|append_whole)\(")
FOR_OTHERS = {  # what is written to be shown, or to be handed on: pages, tables, exports, kits
    *("cli/fairness_command", "cli/main", "cli/model_commands", "cli/option_groups", "cli/prediction_output"),
    *("organisations/kit", "training/comparison"),
    *("training/onnx_export", "training/run", "training/run_page", "training/scorecard", "base/files"),
}
TESTED = {  # by this file, or by the one that is named
    *("training/model_part", "training/checkpoint", "families/shares/shares_inputs", "data/load"),
    *("protocols/shares/disk_store", "protocols/shares/spent_chunks"),
    *("organisations/align", "disclosure/ledger", "disclosure/row_sets"),
}
OTHERWISE = {
    "protocols/score_ledger/database": "tests/protocols/test_score_ledger.py",
    "consent/consent_sheet": "a line that is not as it was agrees to no sheet",
    "data/store": "tests/data/test_store.py: its head; rows are read by place",
}


def test_there_is_no_other_file_that_is_read_again() -> None:
    """Whoever adds one gives it a digest and a row of KEPT."""
    names = {
        str(path.relative_to(folder).with_suffix(""))
        for folder in (ROOT / "securevfl", ROOT)
        for path in (folder if folder != ROOT else ROOT / "protocols").rglob("*.py")
        if WRITERS.search(path.read_text(encoding="utf-8"))
    }
    assert names - FOR_OTHERS - TESTED - set(OTHERWISE) == set()
