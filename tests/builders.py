"""Functions that create jobs, tables and parties for tests.

Tests state only what is special about them; the rest is here. `make_job` completes a job, `random_parties` and
`cancer_parties` make parties, `write_tables` stores them in files, and `raises_code` compares the code of an error,
which is stable, instead of its wording.

The generated tables contain by default what real tables contain and tests forget: columns of few whole numbers, exact
zeros, repeated rows and ties.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import ArrayLike, NDArray
from pyarrow import csv, parquet

import securevfl as vfl
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.consent.sheet_document import SheetSection
from securevfl.crypto.transfers import base_transfers, punctured_seeds
from securevfl.crypto.transfers.field_transfers import TransferReceiver, TransferSender
from securevfl.data.preparation import FittedPreparation
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.outputs import disclosures_of
from securevfl.errors import SecureVFLError

REAL_TABLES = Path(__file__).parents[2] / "shared" / "data"
"""The folder of the real tables; it need not exist."""

PARTY_NAMES = ("bank", "shop", "telco", "insurer")
"""The names of parties in tests; the first one has the labels."""

OPEN_JOB: dict[str, Any] = {
    "model": "logistic",
    "optimizer": {"name": "fedbcd", "lr": 0.3},
    "protocol": "open",
    "batch_size": 64,
    "epochs": 2,
    "test_fraction": 0.25,
    "accepts": ("columns", "rank"),
}
"""A small training in rounds whose residuals are open."""

CKKS_JOB: dict[str, Any] = {
    "model": "logistic",
    "optimizer": {"name": "fedbcd", "lr": 0.1},
    "protocol": {"residual": "ckks"},
    "batch_size": 40,
    "epochs": 1,
    "accepts": ("columns",),
}
"""A small training in rounds whose residuals are encrypted."""

SHARES_JOB: dict[str, Any] = {
    "model": "logistic",
    "optimizer": {"name": "fedsgd", "lr": 0.3},
    "protocol": {"shares": {"chunk": 2}},
    "batch_size": 120,
    "epochs": 4,
    "test_fraction": 0.3,
}
"""A small training on secret shares."""


def make_job(base: Mapping[str, Any] = OPEN_JOB, /, **keys: Any) -> vfl.Job:
    """Return a job with the keys of `base`, replaced and completed by `keys`.

    Values may be option objects (`vfl.FedSGD(lr=0.1)`), names ("logistic") or dictionaries as in a job file.
    """
    return vfl.Job(**{**base, **keys})


def job_file(path: Path, text: str, **replacements: str) -> Path:
    """Write a job file and return its path; every word of `replacements` is replaced in the text."""
    for word, value in replacements.items():
        text = text.replace(word, value)
    path.write_text(text, encoding="utf-8")
    return path


def random_blocks(count: int, rows: int, columns: int | Sequence[int] = 3, seed: int = 0) -> list[NDArray[np.float64]]:
    """Return the columns of `count` parties, each (rows, columns), with one shared factor.

    The first column of each block holds whole numbers from -2 to 2, so that ties, zeros and repeated values occur. The
    last rows, a tenth of all, repeat the first ones.
    """
    generator = np.random.default_rng([seed, count])
    widths = [columns] * count if isinstance(columns, int) else list(columns)
    factor = generator.normal(size=(rows, 1))
    blocks = [0.5 * factor + generator.normal(size=(rows, width)) for width in widths]
    for block in blocks:
        if block.shape[1] > 1:
            block[:, 0] = np.clip(np.round(block[:, 0]), -2, 2)
        if repeated := rows // 10:
            block[-repeated:] = block[:repeated]
    return blocks


def labels_for(blocks: Sequence[NDArray[np.float64]], kind: str | int = 2, seed: int = 0) -> NDArray[Any]:
    """Return labels (rows,) that depend on the columns of every party.

    Args:
        blocks: the columns of each party.
        kind: a number of classes, of which the last one is the rarest, or "numbers", "counts" or "amounts".
        seed: of the noise.
    """
    generator = np.random.default_rng([seed, 1])
    score = sum(block.sum(axis=1) / np.sqrt(block.shape[1]) for block in blocks) / np.sqrt(len(blocks))
    noisy = np.asarray(score + generator.logistic(scale=0.5, size=len(blocks[0])))
    if kind == "numbers":
        return noisy
    if kind == "counts":
        return generator.poisson(np.exp(np.clip(score / 2, -3, 3)))
    if kind == "amounts":
        return np.asarray(np.exp(score / 2 + 0.1 * generator.normal(size=len(noisy))))
    assert isinstance(kind, int)
    shares = np.arange(kind, 0, -1) / (kind * (kind + 1) / 2)  # shares of the classes: 2 : 1, or 3 : 2 : 1, and so on
    return np.searchsorted(np.quantile(noisy, np.cumsum(shares)[:-1]), noisy)


def parties_of(
    blocks: Sequence[ArrayLike],
    y: ArrayLike | None,
    *,
    names: Sequence[str] = PARTY_NAMES,
    ids: ArrayLike | range | None = None,
    **options: Any,
) -> list[vfl.Party]:
    """Return one party for each block of columns; the first one gets the labels `y` and the options.

    Without `ids`, the rows count as aligned.
    """
    shared: dict[str, Any] = {"aligned": True} if ids is None else {"ids": ids}
    return [
        vfl.Party(names[k], block, y if k == 0 else None, **shared, **(options if k == 0 else {}))
        for k, block in enumerate(blocks)
    ]


def random_parties(
    count: int = 2,
    rows: int = 240,
    columns: int | Sequence[int] = 3,
    labels: str | int = 2,
    *,
    names: Sequence[str] = PARTY_NAMES,
    ids: bool = False,
    seed: int = 0,
    **options: Any,
) -> list[vfl.Party]:
    """Return parties with generated columns and labels.

    Args:
        count: number of parties.
        rows: number of rows.
        columns: number of columns of each party.
        labels: kind of the first party's labels, see `labels_for`.
        names: names of the parties.
        ids: True if rows have ids from 0 on; otherwise they count as aligned.
        seed: of everything that is drawn.
        options: passed to the first party.
    """
    blocks = random_blocks(count, rows, columns, seed)
    numbers = np.arange(rows) if ids else None
    return parties_of(blocks, labels_for(blocks, labels, seed), names=names, ids=numbers, **options)


def cancer_parties(count: int = 2, rows: int | None = None) -> list[vfl.Party]:
    """Return the breast-cancer table (569 rows, 30 columns), or its first rows, divided among parties."""
    parties = vfl.datasets.breast_cancer(parties=count)
    return parties if rows is None else [party.take(np.arange(rows)) for party in parties]


def write_table(path: Path, columns: Mapping[str, ArrayLike]) -> Path:
    """Write columns to a CSV or Parquet file, by the ending of its name, and return the path."""
    table = pa.table({name: pa.array(np.asarray(values)) for name, values in columns.items()})
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        csv.write_csv(table, path)
    return path


def write_tables(folder: Path, parties: Sequence[vfl.Party], suffix: str = ".csv") -> dict[str, Path]:
    """Write each party's ids, labels (column y) and columns to a file, and return the files by party."""
    files = {}
    for party in parties:
        ids = np.arange(len(party)) if party.ids is None else np.asarray(party.ids)
        columns: dict[str, ArrayLike] = {"id": ids}
        if party.y is not None:
            columns["y"] = party.y
        columns |= dict(zip(party.columns, np.asarray(party.X[np.arange(len(party))]).T, strict=True))
        files[party.name] = write_table(folder / f"{party.name}{suffix}", columns)
    return files


def disclosures_in_run(job: vfl.Job, shape: RunShape) -> list[Disclosure]:
    """Return what the outputs of a job's family disclose in a complete run, as leak checks and ledgers count it."""
    return disclosures_of(job.family.outputs(job, shape))


@contextmanager
def raises_code(
    kind: type[SecureVFLError], code: str, /, **fields: object
) -> Iterator[pytest.ExceptionInfo[SecureVFLError]]:
    """Check that the block raises an error of this type with this code and, among others, these fields."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code} instead of {code}: {caught.value}"
    for name, value in fields.items():
        assert caught.value.fields.get(name) == value, f"{name}: {caught.value.fields.get(name)!r} is not {value!r}"


def used_chunks(ledger: DisclosureLedger) -> list[str]:
    """Return the names of the preprocessing chunks that the owner of a ledger has used, in hexadecimal."""
    with ledger.database.reading() as tables:
        return [name.hex() for (name,) in tables.execute("SELECT name FROM used_chunks")]


def reread(preparation: FittedPreparation) -> FittedPreparation:
    """Return a preparation as it is read from the file of a part of a model."""
    steps, types = json.dumps(preparation.plain()), json.dumps(preparation.plain_types())
    return FittedPreparation.read(preparation.columns, json.loads(steps), json.loads(types))


def transfer_pair(
    bits: int,
    pad_octets: int = 8,
    receiver: type[TransferReceiver] = TransferReceiver,
    sender: type[TransferSender] = TransferSender,
) -> tuple[Any, Any]:
    """Return the receiver and the sender of transfers that select one of 2^bits keys
    (pads), after real base transfers.
    """
    secret, choices = punctured_seeds.fresh_secret()
    base, coin = base_transfers.BaseSender(), os.urandom(32)
    points, keys = base_transfers.receive_keys(base.offer, choices)
    sums, seeds = punctured_seeds.grow(base.pairs(points), coin)
    punctured = punctured_seeds.puncture(secret, keys, coin, sums)
    return receiver(seeds, coin, bits, pad_octets), sender(secret, punctured, coin, bits, pad_octets)


def sheet_part(sheet: str, party: str) -> str:
    """Return the words below this party's headings in a consent sheet."""
    lines, current = list[str](), ""
    for line in sheet.splitlines():
        if line.startswith("    "):
            lines += [line] if current == party else []
        else:
            current = line.split()[0] if re.fullmatch(r"  [\w-]+( \(.*\))?", line) else current if not line else ""
    return " ".join(" ".join(lines).split())


def learned_rows(sheet: ConsentSheet) -> list[tuple[str, ...]]:
    """Return the rows of the table of a sheet that states who learns what."""
    return [tuple(row.values()) for row in sheet.learned]


def section_words(section: SheetSection) -> list[str]:
    """Return all words of a section of a consent sheet."""
    table = section.table
    texts = [section.title, *([] if table is None else [*table.heads, *(cell for row in table.rows for cell in row)])]
    for block in section.blocks:
        texts += [block.heading, *(part for statement in block.statements for part in statement)]
    return " ".join(texts).split()
