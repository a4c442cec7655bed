"""The SQL tables of a score ledger, and the statements that read and change them.

A score ledger is the part of a party's account (an SQLite file, `securevfl.account`) in which it records which scores
and metrics about its rows other parties ("peers") have received. Rows are identified by digests of their ids. `content`
is a digest of a row's columns. Reason codes name the columns that affect a row's score most. An evaluation computes
metrics of a model, such as the AUC, on a set of rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from securevfl.account.database import Tables
from securevfl.protocols.score_ledger.row_digests import ROW_DIGEST_BYTES

SCORE_TABLES_SQL = """
CREATE TABLE IF NOT EXISTS names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS models (model INTEGER PRIMARY KEY, visits INTEGER, columns INTEGER, alike INTEGER);
CREATE TABLE IF NOT EXISTS trained (model INTEGER, row BLOB, PRIMARY KEY (model, row)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contents (model INTEGER, content BLOB, count INTEGER, PRIMARY KEY (model, content))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scored (row BLOB, peer INTEGER, model INTEGER, bits REAL, tries INTEGER, committed BLOB,
    claim TEXT, part BLOB, score BLOB, PRIMARY KEY (row, peer, model)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS alike (peer INTEGER, model INTEGER, asked INTEGER, alike INTEGER, PRIMARY KEY (peer, model))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS codes (row BLOB, source TEXT, bits REAL, PRIMARY KEY (row, source)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS times (row BLOB, what INTEGER, count INTEGER, PRIMARY KEY (row, what)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reserved (search TEXT, training TEXT, remaining INTEGER NOT NULL,
    PRIMARY KEY (search, training)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pairs (model INTEGER PRIMARY KEY, bits REAL NOT NULL);
"""
"""The tables contain the following; "equal" means equal in this party's columns.

names: a number for each model and each peer.
models: iterations of a training, number of its training rows (`columns`), and how many of these equal another one.
trained, contents: the training rows of a model, by the digests of their ids, and by the digests of their columns.
scored: one record for each row, requesting peer and model.
alike: how many rows a peer has requested (`asked`), and how many of them equal a training row.
codes: bits that reason codes have disclosed about a row.
times: counters of evaluations for each row.
reserved: evaluations that are already counted in `times`, and that trainings of a search (`securevfl tune`) may still
    make.
pairs: bits of all scores of a model with pairs, whose requesting party chooses what each score shows.
"""

ANY_ROW = b""
"""The row of counters that apply to every row."""
_ANY_MODEL = 0  # the number of no model, for bits that count for every model
_USED_UP = 1_000_000_000

SELECT_ASKED = "SELECT committed, part IS NOT NULL FROM scored WHERE row = ? AND peer = ? AND model = ?"
INSERT_ADMITTED = """INSERT INTO scored VALUES (?, ?, ?, ?, 1, ?, ?, NULL, NULL)
    ON CONFLICT DO UPDATE SET tries = tries + 1, bits = excluded.bits, claim = excluded.claim"""
INSERT_ASKED = "INSERT OR IGNORE INTO scored VALUES (?, ?, ?, 0, 0, ?, '', NULL, NULL)"
UNDO_ATTEMPT = "UPDATE scored SET tries = tries - 1, claim = '' WHERE row = ? AND peer = ? AND model = ?"
DELETE_UNUSED = "DELETE FROM scored WHERE row = ? AND peer = ? AND model = ? AND tries <= 0"
SUBTRACT_UNUSED_PAIR_BITS = """UPDATE pairs SET bits = bits - (
    SELECT total(bits) FROM scored WHERE row = ?1 AND peer = ?2 AND model = ?3 AND tries <= 0) WHERE model = ?3"""
STORE_VALUE = {
    "part": "UPDATE scored SET part = ?, claim = '' WHERE row = ? AND peer = ? AND model = ?",
    "score": "UPDATE scored SET score = ? WHERE row = ? AND peer = ? AND model = ?",
}
SELECT_VALUE = {
    "part": "SELECT part FROM scored WHERE row = ? AND peer = ? AND model = ? AND committed = ?",
    "score": "SELECT score FROM scored WHERE row = ? AND peer = ? AND model = ? AND committed = ?",
}
INSERT_CODES = "INSERT INTO codes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET bits = max(bits, excluded.bits)"
_SELECT_TRAINING_ROW = {
    "trained": "SELECT 1 FROM trained WHERE model = ? AND row = ?",
    "contents": "SELECT 1 FROM contents WHERE model = ? AND content = ?",
}


# One statement with all digests in one parameter (?1, concatenated) is about three times faster than one per digest.
_SPLIT_DIGESTS = f"""WITH RECURSIVE starts(start) AS (SELECT 1 WHERE length(?1) > 0
        UNION ALL SELECT start + {ROW_DIGEST_BYTES} FROM starts WHERE start + {ROW_DIGEST_BYTES} < length(?1)),
    digests(digest) AS (SELECT substr(?1, start, {ROW_DIGEST_BYTES}) FROM starts)"""  # noqa: S608
_INSERT_TRAINED = f"{_SPLIT_DIGESTS} INSERT OR IGNORE INTO trained SELECT ?2, digest FROM digests"  # noqa: S608
_INSERT_CONTENTS = f"""{_SPLIT_DIGESTS} INSERT INTO contents SELECT ?2, digest, 1 FROM digests WHERE true
    ON CONFLICT DO UPDATE SET count = count + 1"""  # noqa: S608
_INCREMENT_COUNTS = f"""{_SPLIT_DIGESTS} INSERT INTO times SELECT digest, ?2, 1 FROM digests WHERE true
    ON CONFLICT DO UPDATE SET count = count + 1"""  # noqa: S608
_SELECT_MAX_COUNT = f"""SELECT max(count) FROM times
    WHERE what = ?2 AND row IN ({_SPLIT_DIGESTS} SELECT digest FROM digests UNION ALL SELECT ?3)"""  # noqa: S608


def name_id(tables: Tables, name: str) -> int:
    """Return the number that represents a model or a peer in the other tables.

    Inside a transaction, an unknown name receives a new number. Otherwise the result for an unknown name is -1.
    """
    record = tables.execute("SELECT number FROM names WHERE name = ?", (name,)).fetchone()
    if record is not None:
        return int(record[0])
    if not tables.in_transaction:
        return -1
    return int(tables.execute("INSERT INTO names (name) VALUES (?)", (name,)).lastrowid or 0)


def iterations_of(tables: Tables, model: str) -> int | None:
    """Return the number of training iterations of a model, or None for an unknown model."""
    record = tables.execute("SELECT visits FROM models WHERE model = ?", (name_id(tables, model),)).fetchone()
    return None if record is None else int(record[0])


def contains(tables: Tables, table: str, model: int, digest: bytes) -> bool:
    """Return whether a digest belongs to a training row of a model: of its id (`trained`) or columns (`contents`)."""
    return tables.execute(_SELECT_TRAINING_ROW[table], (model, digest)).fetchone() is not None


def add_trained(tables: Tables, model: int, rows: bytes) -> None:
    """Add digests of the ids of a model's training rows, concatenated; ascending digests are added fastest."""
    tables.execute(_INSERT_TRAINED, (_whole_digests(rows), model))


def add_contents(tables: Tables, model: int, contents: bytes) -> None:
    """Add digests of the columns of a model's training rows, concatenated and with repetitions."""
    tables.execute(_INSERT_CONTENTS, (_whole_digests(contents), model))


def _whole_digests(digests: bytes) -> bytes:
    """Return concatenated digests as they are; statements would split those of another length at wrong places."""
    assert len(digests) % ROW_DIGEST_BYTES == 0, "digests have one length"
    return digests


def record_model(tables: Tables, model: int, iterations: int) -> None:
    """Record a model's number of iterations, and how many of its training rows have the same columns as another one."""
    select = "SELECT total(count), total(count * (count > 1)) FROM contents WHERE model = ?"
    rows, repeated = tables.execute(select, (model,)).fetchone()
    tables.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?)", (model, iterations, int(rows), int(repeated)))


def disclosed_bits(tables: Tables, row: bytes) -> tuple[float, float]:
    """Return the number of bits about a row that scores have disclosed, and the number that reason codes have."""
    scores, codes = (
        float(tables.execute(f"SELECT total(bits) FROM {table} WHERE row = ?", (row,)).fetchone()[0])  # noqa: S608
        for table in ("scored", "codes")
    )
    return scores, codes


def use_up_everything(tables: Tables) -> None:
    """Make the ledger refuse all further scores and evaluations of the models and rows that it contains.

    An account that was restored from an older copy may lack disclosures, so the worst case is recorded: every limit is
    reached. Interrupted searches may not evaluate any further model either.

    Args:
        tables: the SQL tables of the ledger, inside a transaction.
    """
    for statement in filter(str.strip, SCORE_TABLES_SQL.split(";")):
        tables.execute(statement)
    tables.execute("UPDATE models SET visits = 0")
    tables.execute("UPDATE reserved SET remaining = 0")
    tables.executemany("INSERT OR REPLACE INTO times VALUES (?, ?, ?)", [(ANY_ROW, kind, _USED_UP) for kind in (0, 1)])
    tables.execute("INSERT OR REPLACE INTO pairs VALUES (?, ?)", (_ANY_MODEL, _USED_UP))


def increment_counts(tables: Tables, rows: Iterable[bytes], kind: int) -> None:
    """Increase the counter of this kind (`EVALUATION` or `RANGE_COUNT`) by one for each row."""
    tables.execute(_INCREMENT_COUNTS, (_whole_digests(b"".join(sorted(rows))), kind))


def max_count(tables: Tables, rows: Iterable[bytes], kind: int) -> int:
    """Return the largest value of this kind of counter (`EVALUATION` or `RANGE_COUNT`) over these rows."""
    (count,) = tables.execute(_SELECT_MAX_COUNT, (_whole_digests(b"".join(rows)), kind, ANY_ROW)).fetchone()
    return count or 0


def pair_bits(tables: Tables) -> float:
    """Return the number of bits that scores of models with pairs have disclosed, over all rows, models and peers."""
    return float(tables.execute("SELECT total(bits) FROM pairs").fetchone()[0])


def add_pair_bits(tables: Tables, model: int, bits: float) -> None:
    """Add to the bits that scores of a model with pairs have disclosed."""
    insert = "INSERT INTO pairs VALUES (?, ?) ON CONFLICT DO UPDATE SET bits = bits + excluded.bits"
    tables.execute(insert, (model, bits))


def count_matches(tables: Tables, peer: int, model: int, requested: int, matching: int) -> None:
    """Add to the counts of rows that a peer has requested, and of requested rows that equal a training row."""
    tables.execute(
        "INSERT INTO alike VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET asked = asked + excluded.asked, "
        "alike = alike + excluded.alike",
        (peer, model, requested, matching),
    )
