"""What a party has let others score and measure with its columns, across runs: a file that is asked before it tells.

Scores are outputs, and whoever gets them chooses its own columns freely. A score on known own columns shows the other
party's sum up to one's own; d_A + 1 questions about one row with chosen own columns show theta_A, and then the other
party's sum of every row that is asked; scores of the same rows under many models show the other party's columns up to
an invertible matrix; scores of training rows are residuals to whoever has the labels; scores of a model that was hardly
trained are products of its columns with chosen labels. So, at most:

- a row is scored once for a peer by a model: asked again, whatever block it comes in, it gets the same bytes, which
  both holders have kept; and under fewer than d / 4 models in all (or one), d the party's own columns;
- all scores of a row, whoever was told them, have together a fourth of the bits that the party's columns hold
  (`BUDGET`), c scores of k bits counting c k, and the codes of its heaviest columns beside them, unless it has agreed
  to more;
- rows that a model was trained on are never scored by it. They are known by their ids; who names them otherwise is
  found by their columns, over all questions of a peer: if more of the rows that were asked about have columns of
  training rows than chance explains, the peer gets no more scores. No row is named or answered differently for its
  columns;
- a model is scored after its last visit, and after ten visits or more;
- a row comes with the columns that it came with before: whoever asks commits to them, by a digest under a key of its
  own ledger, before it is answered;
- a row is measured once for each hundred of the rows that it is measured with, in all runs and whoever measures,
  unless it has agreed, and counted among those near the end of the table as often.

A row that may not be scored is refused by itself, without a reason, and the others are answered. Whoever asks keeps
what it was told, and by whom its own rows were trained on, and so says why of what it asked itself.

These are limits, not proofs, and a peer that does not follow the protocol may commit to what it likes. Rows are kept as
keyed hashes of their ids, in tables on disk before the answer is given (score_ledger.py). Look-up, admission and what
the row may still tell are one change of the file; a row that one conversation is scoring is waited for by the others.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import os
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.checked_files import DamagedFileError
from securevfl.base.chunked_matrix import Stretch, Tall
from securevfl.base.files import keep_name, make_private
from securevfl.data.id_keys import order_by_value
from securevfl.errors import ConfigError, LeakageError, ProtocolError, SecureVFLError, StorageError
from securevfl.runtime import eventlog

# A file that processes change in place, and that is found again as the last of them left it.
#
# Beside it lies its seal: the digest of the whole file, as long as nobody uses it, written by the last that did. So a
# bit that a disk has lost, an end that was cut off, or an older copy that was put back alone, is noticed before it is
# used. While somebody uses the file, and after that process was killed, there is no digest to go by; whoever comes next
# is told so, to look by other means. Readers and writers hold a lock on the seal, which falls with their process.


_IN_USE = b"in use\n"
_SEALED = 65  # bytes of a digest in hex, and the end of its line
_PIECE = 1 << 16  # bytes that are read and digested at a time


class AtRest:
    """This process's use of the file at `path`, which is there, until `close`.

    left: whether it was left in order; if not, its digest is not known. DamagedFileError if it is not as it was left,
    StorageError if the seal cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        seal = path.with_name(f"{path.name}.seal")
        try:
            self._lock = os.open(seal, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as cause:
            raise StorageError(seal, cause) from None
        try:
            self.left = self._begin()
        except OSError as cause:
            os.close(self._lock)
            raise StorageError(seal, cause) from None
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """End the use, once the file is closed: the last to do so notes what it leaves."""
        with suppress(OSError):  # of a file that cannot be read, or a full disk: what comes next looks by other means
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(_digest_of_file(self._path))
        os.close(self._lock)

    def drop(self) -> None:
        """End the use of a file that turned out to be none, and leave its seal open."""
        os.close(self._lock)

    def _begin(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # others use it, and have looked
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            return True
        sealed = os.pread(self._lock, 128, 0)
        left = len(sealed) == _SEALED  # a full disk may have taken a part of it
        if left and not hmac.compare_digest(sealed, _digest_of_file(self._path)):
            raise DamagedFileError
        self._write(_IN_USE)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        return left

    def _write(self, what: bytes) -> None:
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, what, 0)
        os.fsync(self._lock)


def _digest_of_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return f"{digest.hexdigest()}\n".encode()


# A file of tables that processes share: what a ledger of scores knows, on disk before it counts.
#
# SQLite keeps it: rows lie sorted by their keys in pages of a file, which are read where they are asked for, so that a
# ledger of millions of rows opens at once and takes no memory. A change is whole and flushed, or never was; processes
# and threads take turns. The file holds a key of its own.


KEY_BYTES = 32
_SCHEMA = 1
_SQLITE = b"SQLite format 3\0"
_WAIT = 60.0  # seconds for another process's change
_MAPPED = 1 << 30  # bytes of the file that are mapped at most
_META = "CREATE TABLE meta (schema INTEGER NOT NULL, key BLOB NOT NULL);"


class _Group:
    """Changes that go to disk together: how many have come to their end, and why they are not there if they failed."""

    def __init__(self) -> None:
        self.members, self.closed = 0, False
        self.error: SecureVFLError | None = None


class LedgerFile:
    """The tables of one file, or without a path those of one process. ConfigError if the file is none of ours.

    Threads that change it at once are flushed together: each waits until what it has changed is on disk.
    """

    def __init__(self, path: Path | None, tables: str) -> None:
        """tables: statements that make them."""
        self.path = path
        self._one = threading.Condition(threading.RLock())
        self._counting, self._coming = threading.Lock(), 0  # threads that are about to change it
        self._group = _Group()
        if path is None:
            self._connection, self.key = _opened(None, tables)
            return
        if not path.exists():
            _make(path, tables)
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) != _SQLITE:
                raise _no_ledger(path)
        try:
            rest = AtRest(path)
        except DamagedFileError:
            raise _damaged(path) from None
        try:
            self._connection, self.key = _opened(path, tables, look=not rest.left)
        except BaseException:
            rest.drop()
            raise
        weakref.finalize(self, _leave, self._connection, rest)

    @classmethod
    def shared(cls, path: Path | None, tables: str) -> LedgerFile:
        """Return the one object of this process for a file, so that its threads take turns without asking the disk."""
        if path is None:
            return cls(None, tables)
        with _opening:
            shared = _shared.get(_identity(path)) if path.exists() else None
            if shared is None:
                shared = cls(path, tables)
                _shared[_identity(path)] = shared
            return shared

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Hand out the tables, which nobody else changes meanwhile. What the block changes is on disk when it ends, and
        nothing of it if the block raises. StorageError if it cannot be written."""
        with self._counting:
            self._coming += 1
        try:
            self._one.acquire()
        finally:
            with self._counting:
                self._coming -= 1
        try:
            self._one.notify_all()
            with self.reading() as tables:
                if not tables.in_transaction:
                    self._group = _Group()
                    tables.execute("BEGIN IMMEDIATE")
                group = self._group
                tables.execute("SAVEPOINT change")
                try:
                    yield tables
                except BaseException:
                    self._take_back(tables, group)
                    raise
                tables.execute("RELEASE change")
                group.members += 1
        finally:
            self._one.release()
        self._flush(group)

    def _take_back(self, tables: sqlite3.Connection, group: _Group) -> None:
        """Undo a change that failed, and no other; all of them where SQLite has done so."""
        if not tables.in_transaction:
            group.closed, group.error = True, self._failed(sqlite3.OperationalError("a change beside it failed"))
        elif group.members:
            tables.execute("ROLLBACK TO change")
            tables.execute("RELEASE change")
        else:
            tables.execute("ROLLBACK")

    def _flush(self, group: _Group) -> None:
        """Wait until a group of changes is on disk, or put it there, if no other thread is about to join it."""
        with self._one:
            while self._coming and not group.closed:
                self._one.wait()
            if not group.closed:
                group.closed = True
                try:
                    self._connection.execute("COMMIT")
                except sqlite3.Error as error:
                    group.error = self._failed(error)
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
            self._one.notify_all()
            if group.error is not None:
                raise group.error

    def _failed(self, error: sqlite3.Error) -> SecureVFLError:
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return _damaged(self.path)
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return StorageError(self.path or "memory", OSError(errno.ENOSPC if full else errno.EIO, str(error)))

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hand out the tables, to be read. StorageError if they cannot be."""
        with self._one:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._failed(error) from None


_shared: weakref.WeakValueDictionary[tuple[int, ...], LedgerFile] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _identity(path: Path) -> tuple[int, ...]:
    """Return what tells a file from any other that this process may have open."""
    found = path.stat()
    return os.getpid(), found.st_dev, found.st_ino


def _leave(connection: sqlite3.Connection, rest: AtRest) -> None:
    connection.close()
    rest.close()


def _opened(path: Path | None, tables: str, *, look: bool = False) -> tuple[sqlite3.Connection, bytes]:
    """Open a file and return its key. look: whether all of it is looked through for damage first. ConfigError if it is
    another file, or damaged."""
    connection = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        if path is None:
            _fill(connection, tables)
        connection.execute(f"PRAGMA mmap_size = {_MAPPED}")
        connection.execute("PRAGMA journal_mode = WAL")  # a change is one flush
        connection.execute("PRAGMA synchronous = FULL")
        if look and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise _damaged(path)
        schema, key = connection.execute("SELECT schema, key FROM meta").fetchone()
        if schema != _SCHEMA:
            raise _no_ledger(path)
    except (sqlite3.OperationalError, TypeError, ValueError):
        connection.close()
        raise _no_ledger(path) from None
    except sqlite3.DatabaseError:
        connection.close()
        raise _damaged(path) from None
    except BaseException:
        connection.close()
        raise
    return connection, bytes(key)


def _fill(connection: sqlite3.Connection, tables: str) -> None:
    """Make the tables in an empty file, with a key of its own."""
    for statement in filter(str.strip, (_META + tables).split(";")):
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES (?, ?)", (_SCHEMA, os.urandom(KEY_BYTES)))


def _make(path: Path, tables: str) -> None:
    """Make a file with these tables, whole or not at all; what another process has made meanwhile stays."""
    make_private(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            _fill(connection, tables)
            connection.execute("COMMIT")
        with suppress(FileExistsError):
            os.link(draft, path)
        keep_name(path.parent)
    except sqlite3.Error as error:
        raise StorageError(path, OSError(errno.EIO, str(error))) from None
    except OSError as error:
        raise StorageError(path, error) from None
    finally:
        draft.unlink(missing_ok=True)


def _no_ledger(path: Path | None) -> ConfigError:
    return ConfigError(
        f"{path}: a ledger of scores was expected, something else or one of an earlier version is there; put it "
        "back, or name another file"
    )


def _damaged(path: Path | None) -> ConfigError:
    return ConfigError(
        f"{path}: a ledger of scores as it was left was expected, the file is damaged, or an older copy was put back; "
        "put the newest copy back, and remove the .seal beside it to go on with that: rows that it does not know may "
        "be scored again then"
    )


OWN = ""  # the peer of a question that the ledger's own party asks
REFUSED, NEW, KEPT = 0, 1, 2  # of a row: is not scored; has no score yet; has one, which is kept

FEWEST_VISITS = 10
BUDGET = 1 / 4  # of the bits that columns hold
ROWS_PER_MEASURE = 100
COMMITMENT = 16  # bytes
PATIENCE = 10.0  # seconds that a row is waited for which another conversation is scoring
_AGAIN = 4  # times that scores of a row are made, if none has been kept
_CHANCE = 3.0  # standard errors
_DIGEST = 16  # bytes
_LOOK = 0.01  # seconds
_CHUNK = 65_536  # rows that are noted at a time
_MEASURED, _COUNTED = 0, 1
_KNOWN = "SELECT committed, part IS NOT NULL FROM scored WHERE row = ? AND peer = ? AND model = ?"
_ADMIT = """INSERT INTO scored VALUES (?, ?, ?, ?, 1, ?, ?, NULL, NULL)
    ON CONFLICT DO UPDATE SET tries = tries + 1, bits = excluded.bits, claim = excluded.claim"""
_ASK = "INSERT OR IGNORE INTO scored VALUES (?, ?, ?, 0, 0, ?, '', NULL, NULL)"
_TAKE_BACK = "UPDATE scored SET tries = tries - 1, claim = '' WHERE row = ? AND peer = ? AND model = ?"
_FORGET = "DELETE FROM scored WHERE row = ? AND peer = ? AND model = ? AND tries <= 0"
_KEEP = {
    "part": "UPDATE scored SET part = ?, claim = '' WHERE row = ? AND peer = ? AND model = ?",
    "score": "UPDATE scored SET score = ? WHERE row = ? AND peer = ? AND model = ?",
}
_READ = {
    "part": "SELECT part FROM scored WHERE row = ? AND peer = ? AND model = ? AND committed = ?",
    "score": "SELECT score FROM scored WHERE row = ? AND peer = ? AND model = ? AND committed = ?",
}
_CODES = "INSERT INTO codes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET bits = max(bits, excluded.bits)"
_HOLDS = {
    "trained": "SELECT 1 FROM trained WHERE model = ? AND row = ?",
    "contents": "SELECT 1 FROM contents WHERE model = ? AND content = ?",
}

_TABLES = """
CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE models (model INTEGER PRIMARY KEY, visits INTEGER, columns INTEGER, alike INTEGER);
CREATE TABLE trained (model INTEGER, row BLOB, PRIMARY KEY (model, row)) WITHOUT ROWID;
CREATE TABLE contents (model INTEGER, content BLOB, count INTEGER, PRIMARY KEY (model, content)) WITHOUT ROWID;
CREATE TABLE scored (row BLOB, peer INTEGER, model INTEGER, bits REAL, tries INTEGER, committed BLOB, claim TEXT,
    part BLOB, score BLOB, PRIMARY KEY (row, peer, model)) WITHOUT ROWID;
CREATE TABLE alike (peer INTEGER, model INTEGER, asked INTEGER, alike INTEGER, PRIMARY KEY (peer, model)) WITHOUT ROWID;
CREATE TABLE codes (row BLOB, source TEXT, bits REAL, PRIMARY KEY (row, source)) WITHOUT ROWID;
CREATE TABLE times (row BLOB, what INTEGER, count INTEGER, PRIMARY KEY (row, what)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class ScoreQuestion:
    """What a peer asks a model about some rows of a party's: what they are called in its ledger."""

    model: str
    peer: str
    rows: Sequence[bytes]
    committed: Sequence[bytes]

    def where(self, mask: NDArray[np.bool_]) -> ScoreQuestion:
        """Return the question about those rows alone."""
        chosen = np.flatnonzero(mask).tolist()
        return ScoreQuestion(
            self.model, self.peer, [self.rows[at] for at in chosen], [self.committed[at] for at in chosen]
        )


class Ledger:
    """One party's file of scores, or without a path what one process remembers. ConfigError if the file is none.

    Safe to use from several threads, and from several processes by objects of their own.
    """

    def __init__(self, path: Path | None) -> None:
        self._claims = None if path is None else path.with_name(f"{path.name}.claims")
        self._claimed: set[str] = set()  # in this object
        self._file = LedgerFile.shared(path, _TABLES)

    def trained(self, model: bytes, visits: int, ids: Iterable[bytes], X: RowSlices | Tall | None = None) -> None:
        """Note a model that is ready, with its rows and columns.

        It takes the model's name, how many visits it had, the rows it was trained on, and this party's columns X (n x
        d) of these, in any order, which are read some at a time. Of rows in other processes the digests are made there.
        """
        left, count = iter(ids), 0 if X is None else len(X)
        starts = range(0, count, _CHUNK)
        rows = _rising(iter(lambda: self._digests(islice(left, _CHUNK)), []))
        if isinstance(X, Tall):
            coming = [part.run(_digests_of, self._key_of(b"columns")) for part in X.parts]
            contents = _rising([[each.result()] for each in coming])
        else:
            contents = _rising(self._contents(X[at : min(at + _CHUNK, count)]) for at in starts if X is not None)
        with self._file.changing() as tables:
            noted = _number(tables, model.hex())
            for each in rows:
                tables.executemany("INSERT OR IGNORE INTO trained VALUES (?, ?)", ((noted, row) for row in each))
            for each in contents:
                _count_contents(tables, noted, each)
            _note_model(tables, noted, visits)

    def knows(self, model: bytes) -> bool:
        """Whether this model has been noted."""
        with self._file.reading() as tables:
            return _visits(tables, model.hex()) is not None

    def commitments(self, ids: Iterable[bytes], X: Floats) -> bytes:
        """Return the keyed digests by which this party commits to its columns X (n x d) of these rows.

        Each has COMMITMENT bytes.
        """
        octets = np.ascontiguousarray(X, "<f8")
        return b"".join(
            hashlib.blake2b(row.tobytes(), digest_size=COMMITMENT, key=self._file.key, salt=_salt(each)).digest()
            for row, each in zip(octets, ids, strict=True)
        )

    def question(self, model: bytes, peer: str, ids: Iterable[bytes], commitments: bytes) -> ScoreQuestion:
        """Return what `peer` asks, as this ledger knows it. commitments: what it has sent, COMMITMENT bytes a row."""
        committed = [commitments[at : at + COMMITMENT] for at in range(0, len(commitments), COMMITMENT)]
        return ScoreQuestion(model.hex(), peer, self._digests(ids), committed)

    def admit(
        self,
        question: ScoreQuestion,
        X: Floats,
        *,
        bits: float = 0,
        most: float = float("inf"),
        me: str = "",
        claim: str = "",
    ) -> NDArray[np.uint8]:
        """Return of each row whether it is REFUSED, NEW, which is noted with its `bits` as told, or KEPT (n,).

        X: this party's columns (n x d) of the rows. most: bits of a row that all its answers may have together. claim:
        as `claiming` gives it; rows that another one has not done with are waited for, and refused if that takes long.

        LeakageError, and nothing is noted, if the model may not be scored, or by this peer no more.
        """
        if len(set(question.rows)) < len(question.rows):
            raise ProtocolError(f"scores for {question.peer}: each row once was expected, some came twice")
        contents, deadline = self._contents(X), time.monotonic() + PATIENCE
        while True:
            with self._file.changing() as tables:
                states, awaited = self._judge(tables, question, contents, X.shape[1], bits, most, claim)
                late = time.monotonic() > deadline
                if not awaited or late:
                    break
                tables.execute("ROLLBACK TO change")
            time.sleep(_LOOK)
        facts = {"rows": len(states), "new": int((states == NEW).sum()), "refused": int((states == REFUSED).sum())}
        eventlog.emit(me, "scored", {"peer": question.peer, "model": question.model[:16], **facts})
        return states

    def give_back(self, question: ScoreQuestion) -> None:
        """Note that these rows, which were admitted as new, were not scored after all, as another party refused."""
        with self._file.changing() as tables:
            peer, model = _number(tables, question.peer), _number(tables, question.model)
            keys = [(row, peer, model) for row in question.rows]
            tables.executemany(_TAKE_BACK, keys)
            tables.executemany(_FORGET, keys)

    @contextmanager
    def claiming(self) -> Iterator[str]:
        """Hand out a name under which rows are being scored until the block, or this process, ends."""
        name = os.urandom(16).hex()
        if self._claims is None:
            self._claimed.add(name)
            try:
                yield name
            finally:
                self._claimed.discard(name)
            return
        self._claims.mkdir(mode=0o700, exist_ok=True)
        path = self._claims / name
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)  # falls with the process
            yield name
        finally:
            path.unlink(missing_ok=True)
            os.close(held)

    def _alive(self, claim: str) -> bool:
        """Whether somebody still scores rows under this name."""
        if self._claims is None:
            return claim in self._claimed
        path = self._claims / claim
        try:
            held = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)  # its process was killed
            return False
        finally:
            os.close(held)

    def _judge(
        self,
        tables: sqlite3.Connection,
        question: ScoreQuestion,
        contents: Sequence[bytes],
        columns: int,
        bits: float,
        most: float,
        claim: str,
    ) -> tuple[NDArray[np.uint8], int]:
        """Return the states of rows as they are noted (n,), and how many of them another one is scoring."""
        name = question.peer
        visits = _visits(tables, question.model)
        if visits is None:
            raise LeakageError(
                f"scores for {name}: a finished model of a training that this ledger has noted was expected, it knows "
                "none of these weights; finish the training first, or bring the ledger that it was done with"
            )
        if visits < FEWEST_VISITS:
            raise LeakageError(
                f"scores for {name}: a model of {FEWEST_VISITS} visits or more was expected, the one that was kept had "
                f"{visits}; train longer, and evaluate every {FEWEST_VISITS} visits or less often"
            )
        peer, model, asked_here = (_number(tables, each) for each in (name, question.model, OWN))
        models = max(1, -(-columns // 4) - 1)
        states, awaited, first = np.zeros(len(question.rows), np.uint8), 0, 0
        alike, alive = 0, dict[str, bool]()
        for at, (row, committed, content) in enumerate(zip(question.rows, question.committed, contents, strict=True)):
            if _holds(tables, "trained", model, row):
                continue
            earlier = tables.execute(
                "SELECT peer, model, bits, tries, committed, claim, part IS NOT NULL FROM scored WHERE row = ?", (row,)
            ).fetchall()
            earlier = [each for each in earlier if each[0] != asked_here]
            own = next((each for each in earlier if each[:2] == (peer, model)), None)
            if any(each[0] == peer and each[4] != committed for each in earlier):
                continue
            if own is not None and own[6]:
                states[at] = KEPT
                continue
            if own is not None and own[5] and own[5] != claim and alive.setdefault(own[5], self._alive(own[5])):
                awaited += 1
                continue
            if own is not None and own[3] >= _AGAIN:
                continue
            others = [each for each in earlier if each is not own]
            if len({each[1] for each in others} - {model}) >= models:
                continue
            if sum(each[2] for each in others) + bits + _bits_of(tables, row)[1] > most:
                continue
            states[at] = NEW
            if own is None:
                first += 1
                alike += _holds(tables, "contents", model, content)
            tables.execute(_ADMIT, (row, peer, model, bits, committed, claim))
        _count_alike(tables, peer, model, first, alike)
        self._check_alike(tables, name, peer, model)
        return states, awaited

    def _check_alike(self, tables: sqlite3.Connection, name: str, peer: int, model: int) -> None:
        """LeakageError if more of the rows that a peer has asked a model about have columns of training rows than
        those have among themselves."""
        asked, alike = tables.execute(
            "SELECT asked, alike FROM alike WHERE peer = ? AND model = ?", (peer, model)
        ).fetchone()
        columns, repeated = tables.execute("SELECT columns, alike FROM models WHERE model = ?", (model,)).fetchone()
        share = repeated / max(1, columns)
        if alike > share * asked + _CHANCE * ((share * (1 - share) * asked) ** 0.5 + 1):
            raise LeakageError(
                f"scores for {name}: rows that the model was not trained on were expected; leave the others out, "
                "their scores are residuals"
            )

    def admit_codes(
        self, model: str, ids: Iterable[bytes], X: Floats, *, bits: float, most: float = float("inf")
    ) -> NDArray[np.bool_]:
        """Return of which rows (n,) codes of `bits` of a model may be told, and note them. They may not be where codes
        and scores of all models would have more than `most` bits of a row.

        X: this party's columns (n x d) of the rows; what is told of a row again, from the same columns, counts once.
        """
        sources = [f"{model} {content.hex()}" for content in _contents_of(X, self._key_of(b"codes"))]
        admitted = np.zeros(len(sources), np.bool_)
        with self._file.changing() as tables:
            for at, (row, source) in enumerate(zip(self._digests(ids), sources, strict=True)):
                known = tables.execute("SELECT bits FROM codes WHERE row = ? AND source = ?", (row, source)).fetchone()
                before = 0.0 if known is None else known[0]
                if sum(_bits_of(tables, row)) - before + max(before, bits) > most:
                    continue
                admitted[at] = True
                tables.execute(_CODES, (row, source, bits))
        return admitted

    def check_measures(self, peer: str, ids: Iterable[bytes], times: int) -> None:
        """LeakageError if so many more measurements of these rows are more than there may be."""
        with self._file.reading() as tables:
            _check_measures(tables, peer, self._digests(ids), times)

    def measure(self, peer: str, ids: Iterable[bytes], *, limited: bool = True, me: str = "", times: int = 1) -> None:
        """Note that `peer` measures models on these rows, so many times.

        LeakageError, and nothing is noted, if it is limited and they have had their measurements, by any peer.
        """
        rows = self._digests(ids)
        with self._file.changing() as tables:
            if limited:
                _check_measures(tables, peer, rows, times)
            for _ in range(times):
                _count_once(tables, rows, _MEASURED)
        eventlog.emit(me, "measured", {"peer": peer, "rows": len(rows)})

    def measured(self, ids: Iterable[bytes]) -> int:
        """Return how often the row of these that was measured most was."""
        with self._file.reading() as tables:
            return _most_times(tables, self._digests(ids), _MEASURED)

    def count(self, ids: Iterable[bytes]) -> bool:
        """Note that one more count of these rows is told, and return whether it may be; where not, nothing is noted."""
        rows = self._digests(ids)
        with self._file.changing() as tables:
            if _most_times(tables, rows, _COUNTED) >= _most(rows):
                return False
            _count_once(tables, rows, _COUNTED)
        return True

    def bits_told(self, ids: Iterable[bytes]) -> list[tuple[float, float]]:
        """Return the bits of each row that scores have told, and those that codes have."""
        with self._file.reading() as tables:
            return [_bits_of(tables, row) for row in self._digests(ids)]

    def ask(self, question: ScoreQuestion) -> NDArray[np.uint8]:
        """`look`, and note the columns that this party asks about new rows with."""
        states = self.look(question)
        with self._file.changing() as tables:
            peer, model = _number(tables, question.peer), _number(tables, question.model)
            tables.executemany(
                _ASK,
                [
                    (row, peer, model, committed)
                    for row, committed, state in zip(question.rows, question.committed, states.tolist(), strict=True)
                    if state == NEW
                ],
            )
        return states

    def look(self, question: ScoreQuestion) -> NDArray[np.uint8]:
        """Return what this party knows of the rows (n,) of a question of its own: REFUSED if the model was trained on
        them or they were asked about with other columns, KEPT if it has its part of the score, else NEW."""
        states = np.full(len(question.rows), NEW, np.uint8)
        with self._file.reading() as tables:
            peer, model = _number(tables, question.peer), _number(tables, question.model)
            for at, (row, committed) in enumerate(zip(question.rows, question.committed, strict=True)):
                known = tables.execute(_KNOWN, (row, peer, model)).fetchone()
                if _holds(tables, "trained", model, row) or (known is not None and known[0] != committed):
                    states[at] = REFUSED
                elif known is not None and known[1]:
                    states[at] = KEPT
        return states

    def trained_on(self, question: ScoreQuestion) -> NDArray[np.bool_]:
        """Return which of these rows (n,) the model was trained on."""
        with self._file.reading() as tables:
            model = _number(tables, question.model)
            return np.array([_holds(tables, "trained", model, row) for row in question.rows], np.bool_)

    def keep(self, question: ScoreQuestion, values: Sequence[bytes], *, of: Literal["part", "score"] = "part") -> None:
        """Keep what this party tells of each row, or its part of it, on disk before it is given; or the score that came
        of a question of its own."""
        with self._file.changing() as tables:
            peer, model = _number(tables, question.peer), _number(tables, question.model)
            keyed = [(value, row, peer, model) for value, row in zip(values, question.rows, strict=True)]
            tables.executemany(_KEEP[of], keyed)

    def kept(self, question: ScoreQuestion, *, of: Literal["part", "score"] = "part") -> list[bytes | None]:
        """Return what `keep` has kept of each row for this peer, its columns being the same."""
        with self._file.reading() as tables:
            peer, model = _number(tables, question.peer), _number(tables, question.model)
            known = [
                tables.execute(_READ[of], (row, peer, model, committed)).fetchone()
                for row, committed in zip(question.rows, question.committed, strict=True)
            ]
        return [None if each is None else each[0] for each in known]

    def _digests(self, ids: Iterable[bytes]) -> list[bytes]:
        return [hashlib.blake2b(each, digest_size=_DIGEST, key=self._file.key).digest() for each in ids]

    def _contents(self, X: Floats) -> list[bytes]:
        """Return keyed digests of the rows of X (n x d), by which equal rows are counted."""
        return _contents_of(X, self._key_of(b"columns"))

    def _key_of(self, purpose: bytes) -> bytes:
        return hashlib.blake2b(self._file.key, person=purpose).digest()


def _contents_of(X: Floats, key: bytes) -> list[bytes]:
    octets = np.ascontiguousarray(X, "<f8") + 0.0  # one zero
    return [hashlib.blake2b(row.tobytes(), digest_size=_DIGEST, key=key).digest() for row in octets]


def _digests_of(stretch: Stretch, key: bytes) -> bytes:
    """Return the digests of rows where they lie, behind each other."""
    return b"".join(digest for _, X in stretch.blocks() for digest in _contents_of(X, key))


def _rising(pieces: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """Yield digests that come in pieces in rising order, some at a time: tables are filled from end to end by them."""
    keys = np.frombuffer(b"".join(map(b"".join, pieces)), np.uint8).reshape(-1, _DIGEST)
    order = order_by_value(keys)
    for at in range(0, len(order), _CHUNK):
        whole = keys[order[at : at + _CHUNK]].tobytes()
        yield [whole[start : start + _DIGEST] for start in range(0, len(whole), _DIGEST)]


def _number(tables: sqlite3.Connection, name: str) -> int:
    """Return the number by which a model or a peer is known in the tables; -1 if it is not, and may not be entered."""
    known = tables.execute("SELECT number FROM names WHERE name = ?", (name,)).fetchone()
    if known is not None:
        return int(known[0])
    if not tables.in_transaction:
        return -1
    return int(tables.execute("INSERT INTO names (name) VALUES (?)", (name,)).lastrowid or 0)


def _visits(tables: sqlite3.Connection, model: str) -> int | None:
    """Return how many visits a model had; None if it is not known."""
    known = tables.execute("SELECT visits FROM models WHERE model = ?", (_number(tables, model),)).fetchone()
    return None if known is None else int(known[0])


def _holds(tables: sqlite3.Connection, table: str, model: int, digest: bytes) -> bool:
    """Whether a model's rows, or their contents, hold this one."""
    return tables.execute(_HOLDS[table], (model, digest)).fetchone() is not None


def _count_contents(tables: sqlite3.Connection, model: int, contents: Iterable[bytes]) -> None:
    tables.executemany(
        "INSERT INTO contents VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
        ((model, content, count) for content, count in sorted(Counter(contents).items())),
    )


def _note_model(tables: sqlite3.Connection, model: int, visits: int) -> None:
    """Note how many visits a model had, and how many of its rows have the columns of another one."""
    select = "SELECT total(count), total(count * (count > 1)) FROM contents WHERE model = ?"
    columns, alike = tables.execute(select, (model,)).fetchone()
    tables.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?)", (model, visits, int(columns), int(alike)))


def _bits_of(tables: sqlite3.Connection, row: bytes) -> tuple[float, float]:
    """Return the bits of a row that scores have told, and those that codes have."""
    scores, codes = (
        float(tables.execute(f"SELECT total(bits) FROM {table} WHERE row = ?", (row,)).fetchone()[0])  # noqa: S608
        for table in ("scored", "codes")
    )
    return scores, codes


def _most_times(tables: sqlite3.Connection, rows: Iterable[bytes], what: int) -> int:
    """Return how often that row was measured, or counted, which was so most often."""
    select = "SELECT count FROM times WHERE row = ? AND what = ?"
    known = (tables.execute(select, (row, what)).fetchone() for row in rows)
    return max((each[0] for each in known if each is not None), default=0)


def _count_once(tables: sqlite3.Connection, rows: Iterable[bytes], what: int) -> None:
    tables.executemany(
        "INSERT INTO times VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
        ((row, what) for row in sorted(rows)),
    )


def _check_measures(tables: sqlite3.Connection, peer: str, rows: Sequence[bytes], times: int) -> None:
    most, so_far = _most(rows), _most_times(tables, rows, _MEASURED)
    if so_far + times > most:
        raise LeakageError(
            f"metrics for {peer}: {len(rows)} rows are measured {most} times at most, over all runs; some were "
            f"{so_far} times before, with this it would be {so_far + times}; evaluate less (evaluate_every), hold "
            'out more rows, or accept it with accepts = ["small_metrics"]'
        )


def _most(rows: Sequence[bytes]) -> int:
    """How often so many rows may be measured, or counted, together."""
    return max(1, len(rows) // ROWS_PER_MEASURE)


def _salt(each: bytes) -> bytes:
    return hashlib.blake2b(each, digest_size=hashlib.blake2b.SALT_SIZE).digest()


def _count_alike(tables: sqlite3.Connection, peer: int, model: int, asked: int, alike: int) -> None:
    """Count rows that a peer asks a model about, and those of them that have columns of training rows."""
    tables.execute(
        "INSERT INTO alike VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET asked = asked + excluded.asked, "
        "alike = alike + excluded.alike",
        (peer, model, asked, alike),
    )
