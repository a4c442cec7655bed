"""A changed bit in a stored file is noticed when the file is read, and an older copy of a file discloses nothing more.

Once a flipped bit in a saved model part moved predictions by 0.71, and the command reported success. KEPT lists every
kind of file that is written to be read again; a test checks that there is no other kind. RESTORED lists for each kind
what an older copy is good for after it was restored from a backup.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.account.database import AccountDatabase
from securevfl.base.checked_files import write_checked_json
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.data.row_order import read_rows, write_rows
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import SecureVFLError
from securevfl.families.score_results import Measurement
from securevfl.families.shares.shares_inputs import read_inputs
from securevfl.families.state import State
from securevfl.organisations.search_record import SearchRecord
from securevfl.protocols.alignment.journal_folder import FolderJournal
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.training.checkpoint import Checkpoint, Checkpoints
from securevfl.training.evaluation_records import EvaluationFile
from securevfl.training.model_part import PART_SCHEMA, ModelPart
from securevfl.training.public_sizes import PublicSizes
from tests.builders import cancer_parties

ROOT = Path(__file__).parents[2]
JOB_DIGEST = bytes(32)
SIZES = PublicSizes(30, 10, "a" * 32, 2, {"bank": 3, "shop": 4}, {"shop": 8})


@dataclass(frozen=True)
class Kept:
    """A kind of file.

    Attributes:
        write: creates one in a folder and returns its path.
        read: reads the whole file.
    """

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], Any]


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
        JOB_DIGEST, Checkpoint(5, "run", [{"loss": 0.5}], {"shop": "ab"}, State(theta=theta, key=JOB_DIGEST))
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
    """Read all records, also of a copy of the file, which would otherwise be discarded."""
    (path.parent / "chunk-0.bound").unlink(missing_ok=True)
    store = _Bound(path.parent)
    try:
        return [store.peek(0, place) for place in range(3)]
    finally:
        store.close()


class _Bound(DiskStore):
    """A folder whose files count as the original ones, as after a bit error of the disk."""

    def _is_original(self, number: int) -> bool:
        return True


def _journal(folder: Path) -> FolderJournal:
    return FolderJournal(folder, AccountDatabase(folder.with_name("shop.ledger")))


def _read_journal(path: Path) -> bytes:
    return _journal(path.parent).chunk("secrets", 1)


def _write_journal(folder: Path) -> Path:
    journal = _journal(folder / "journal")
    journal.append("secrets", bytes(range(50)))
    return next((folder / "journal").iterdir())


def _ledger(folder: Path) -> DisclosureLedger:
    ledger = DisclosureLedger(folder / "shop.ledger", "shop")
    register = Register.of_ids(id_keys("shop", [range(40)]))
    ledger.record(register, ("run", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)])
    return ledger


def _search(folder: Path) -> SearchRecord:
    return SearchRecord(folder, folder / "bank.ledger", cancer_parties(2)[0], {"grid": "l2"})


def _write_search(folder: Path) -> Path:
    _search(folder).begin({"l2 = 1": 1}, {"l2 = 1": SIZES})
    return next(folder.glob("*.search.json"))


def _write_evaluations(folder: Path) -> Path:
    EvaluationFile(folder / "evaluations").store(3, Measurement({"loss": 0.5}, standard_errors={"loss": 0.1}))
    return folder / "evaluations"


KEPT = [
    Kept("part", _write_part, ModelPart.load),
    Kept("state", _write_state, lambda path: Checkpoints(path.parent, "shop").load(JOB_DIGEST, 5)),
    Kept("inputs of preprocessing", _write_inputs, read_inputs),
    Kept("chunk of preprocessing", _write_chunk, _read_chunk),
    Kept("evaluations", _write_evaluations, EvaluationFile),
    Kept("row order", _write_order, lambda path: read_rows(path.with_name("shop.csv"), of=20)),
    Kept("alignment", _write_journal, lambda path: _journal(path.parent).chunk("secrets", 0)),
    Kept(
        "ledger",
        lambda folder: _ledger(folder).path,
        lambda path: DisclosureLedger(path, "shop").read(),
    ),
    Kept("search", _write_search, lambda path: _search(path.parent)),
]


@dataclass(frozen=True)
class Restored:
    """What an older copy of a file is good for.

    Attributes:
        use: changes the file or uses it up after the copy was made.
        discloses_no_more: returns whether the party discloses nothing more with the copy than without it.
    """

    use: Callable[[Path], Any]
    discloses_no_more: Callable[[Path], bool]


def _is_refused(read: Callable[[Path], Any]) -> Callable[[Path], bool]:
    """Return a check that reading the copy ends with an error that states a remedy."""

    def is_refused(path: Path) -> bool:
        with pytest.raises(SecureVFLError) as refused:
            read(path)
        return bool(refused.value.remedy)

    return is_refused


def _take_record(path: Path) -> None:
    store = DiskStore(path.parent)
    store.take(0, 0)
    store.close()


def _has_no_chunk(path: Path) -> bool:
    """Return whether a store discards the copy, with the mark of its use and without it."""
    copy = path.read_bytes()
    for marked in (True, False):
        if not marked:
            path.with_suffix(".spent").unlink(missing_ok=True)
            path.write_bytes(copy)
        store = DiskStore(path.parent)
        store.close()
        if store.unused_chunks:
            return False
    return True


def _enter_more(path: Path) -> None:
    register = Register.of_ids(id_keys("shop", [range(40)]))
    DisclosureLedger(path, "shop").record(register, ("later", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)])


RESTORED: dict[str, Restored | str] = {
    # these files are not single-use: what they disclose is counted in the account, as the named test shows
    "part": "tests/protocols/test_score_ledger.py::test_budgets_of_rows_are_their_owner_s_over_all_who_ask",
    "state": "tests/account/test_resumed.py::test_a_run_that_is_stopped_around_an_evaluation",
    "evaluations": "tests/transport/test_repeats.py::test_pairs_that_are_opened_again_are_counted_again",
    "inputs of preprocessing": "tests/transport/test_repeats.py::test_restored_precomputed_material_is_useless",
    "row order": "tests/data/test_store.py::test_rows_in_another_order_are_refused",
    "chunk of preprocessing": Restored(_take_record, _has_no_chunk),
    "alignment": Restored(
        lambda path: _journal(path.parent).append("secrets", bytes(range(9))),
        lambda path: (path.parent / "secrets.1.chunk").unlink() or _is_refused(_read_journal)(path),
    ),
    "ledger": Restored(_enter_more, _is_refused(lambda path: DisclosureLedger(path, "shop").read())),
    "search": Restored(
        lambda path: _search(path.parent).use_measurement("l2 = 1"),
        lambda path: _search(path.parent).remaining == {"l2 = 1": 0},
    ),
}


DAMAGE_CODES = {
    "SVFL-FILE-DAMAGED",
    "SVFL-MODEL-FILE",
    "SVFL-CHECKPOINT",
    "SVFL-LEDGER-DAMAGED",
    "SVFL-LEDGER-FOREIGN",
    "SVFL-FILE-WRONG-KIND",
}


def damaged(full: bytes) -> Iterator[bytes]:
    """Yield copies with flipped bits, most of them at the ends, truncated copies, and extended copies."""
    draw = np.random.default_rng(len(full))
    places = {
        *range(min(len(full), 90)),
        *range(max(0, len(full) - 90), len(full)),
        *draw.integers(0, len(full), 40),
    }
    for at in sorted(places):
        yield full[:at] + bytes([full[at] ^ 1 << int(draw.integers(8))]) + full[at + 1 :]
    for cut in (0, 1, len(full) // 2, len(full) - 1):
        yield full[:cut]
    yield full + b"\0"
    yield full * 2


def _content(ledger: bytes) -> bytes:
    """Return a ledger without the fields of SQLite's header that count changes and name the version of SQLite."""
    return ledger[:24] + ledger[28:40] + ledger[44:92] + ledger[100:]


@pytest.mark.parametrize("stored", KEPT, ids=lambda item: item.name)
def test_a_changed_file_is_refused(
    stored: Kept, part: ModelPart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file and the remedy; the unchanged file is read."""
    monkeypatch.setitem(globals(), "_part", lambda: part)
    path = stored.write(tmp_path)
    full = path.read_bytes()
    stored.read(path)
    for spoilt in damaged(full):
        path.write_bytes(spoilt)
        if stored.name == "ledger" and _content(spoilt) == _content(full):
            continue  # SQLite's backup command sets these fields anew, so they are no part of the digest
        if stored.name == "spent names" and full.startswith(spoilt):
            continue  # a truncated line is tested in tests/protocols/test_spent_names.py
        with pytest.raises(SecureVFLError) as refused:
            stored.read(path)
        assert refused.value.code in DAMAGE_CODES, refused.value
        assert refused.value.remedy
        assert str(path) in str(refused.value)
    path.write_bytes(full)
    stored.read(path)


def test_a_part_whose_weights_were_changed_predicts_nothing(part: ModelPart, tmp_path: Path) -> None:
    """One bit of a number in the file changes, and the file is valid JSON before and after."""
    path = tmp_path / "shop.json"
    part.save(path)
    full = path.read_bytes()
    digits = [match.start() for match in re.finditer(rb"(?<=\.)[0-8]", full)]
    for at in digits[:: len(digits) // 20]:
        path.write_bytes(full[:at] + bytes([full[at] ^ 1]) + full[at + 1 :])
        with pytest.raises(SecureVFLError):
            ModelPart.load(path)
    path.write_bytes(full.replace(PART_SCHEMA.encode(), b"securevfl.part/5"))
    with pytest.raises(SecureVFLError):
        ModelPart.load(path)


WRITERS = re.compile(r"\b(write_atomic|atomic_writer|write_checked|write_checked_json)\(")
FOR_OTHERS = {  # files that are written for people or for other programs: pages, tables, exports, kits
    *("cli/main", "cli/ledger_command", "cli/option_groups", "cli/prediction_output", "audit/audit_command"),
    *("credit/fairness_command", "credit/reasons_command", "credit/scorecard_command"),
    *("credit/onnx_export", "credit/scorecard", "data/query_rows"),
    *("organisations/kit", "training/comparison", "training/run", "training/run_page"),
    *("base/files", "base/checked_files"),
}
TESTED = {  # written by this file, or by the named one
    *(
        "training/model_part",
        "training/checkpoint",
        "training/evaluation_records",
        "families/shares/shares_participant",
        "data/row_order",
    ),
    *("protocols/shares/disk_store", "protocols/shares/spent_chunks"),
    *("protocols/alignment/journal_folder", "disclosure/ledger", "disclosure/row_sets"),
    "organisations/search_record",
}
OTHERWISE = {
    "protocols/score_ledger/database": "tests/protocols/test_score_ledger.py",
    "protocols/shares/pair_columns": "a digest for each chunk of rows, and one of the components that were shared",
    "consent/agreed_sheets": "a line that is not as it was agrees to no sheet",
    "data/store": "tests/data/test_store.py: its head; rows are read by place",
}


@pytest.mark.parametrize("stored", KEPT, ids=lambda item: item.name)
def test_an_older_copy_of_a_file_discloses_nothing_more(stored: Kept, tmp_path: Path) -> None:
    restored = RESTORED[stored.name]
    if isinstance(restored, str):
        file, _, name = restored.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
        return
    path = stored.write(tmp_path)
    gc.collect()
    older = path.read_bytes()
    restored.use(path)
    gc.collect()
    path.write_bytes(older)
    assert restored.discloses_no_more(path)


def test_a_record_of_a_search_that_has_ended_is_void(tmp_path: Path) -> None:
    path = _write_search(tmp_path)
    older = path.read_bytes()
    _search(tmp_path).delete()
    path.write_bytes(older)
    assert not _search(tmp_path).is_agreed


def test_an_adopted_account_permits_no_measurement_of_a_search(tmp_path: Path) -> None:
    _write_search(tmp_path)
    DisclosureLedger(tmp_path / "bank.ledger", "bank").pseudonym(b"the ledger's own tables")
    gc.collect()
    assert _search(tmp_path).remaining == {"l2 = 1": 1}
    gc.collect()
    DisclosureLedger.adopt(tmp_path / "bank.ledger")
    assert _search(tmp_path).remaining == {"l2 = 1": 0}


def test_there_is_no_other_file_that_is_read_again() -> None:
    """A new kind of file needs a digest and a row of KEPT."""
    names = {
        str(path.relative_to(folder).with_suffix(""))
        for folder in (ROOT / "securevfl", ROOT)
        for path in (folder if folder != ROOT else ROOT / "protocols").rglob("*.py")
        if WRITERS.search(path.read_text(encoding="utf-8"))
    }
    assert names - FOR_OTHERS - TESTED - set(OTHERWISE) == set()
