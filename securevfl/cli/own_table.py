"""One party's own table, and of the others no more than their sizes: for its sheet and for an audit of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.job import Job


def one_side(
    job: Job,
    job_file: Path,
    data: Sequence[str] | None,
    size: Sequence[str] | None,
    *,
    id_column: str,
    label_column: str,
) -> tuple[Party, dict[str, int]]:
    """Return this party, its rows as an alignment has left them, and the columns of the others, the leading one first.

    Who takes part is in peers.toml beside the job, where there is one. ConfigError for what is missing.
    """
    from securevfl.data.load import read_aligned
    from securevfl.transport.peers import Peers

    if data is None or len(data) != 1:
        raise ConfigError(f"--data: one table was expected beside --size, {len(data or [])} came; give your own")
    name, equals, path = data[0].partition("=")
    if not (name and equals and path):
        raise ConfigError(f"--data {data[0]}: NAME=FILE was expected, as in --data bank=bank.csv; correct it")
    sizes = dict(_size(item) for item in size or ())
    beside = job_file.parent / "peers.toml"
    names = Peers.load(beside).parties if beside.exists() else (*sizes, name)
    missing = [other for other in names if other not in sizes and other != name]
    own = read_aligned(name, Path(path), job, id_column=id_column, label_column=label_column)
    if missing or len(names) < 2:
        shown = " ".join(f"--size {other}=COLUMNS" for other in missing) or "--size NAME=COLUMNS"
        raise ConfigError(
            f"--data: the tables of all parties were expected, or the sizes of those that are not here; add {shown}\n"
            f"{sizes_line(job, own)}"
        )
    return own, {other: sizes[other] for other in names if other != name}


def sizes_line(job: Job, own: Party) -> str:
    """Say which columns --size counts, what the others give for this party, and where its own numbers come from."""
    from securevfl.families.known_run import prepare

    made, brought = len(prepare(job, own, own.register).columns), len(own.columns)
    differs = "" if made == brought else f", of {brought} in your file"
    return (
        f"sizes are of columns as the job prepares them, so a gap or a text in a file may add some: the others give "
        f"--size {own.name}={made} for you{differs}; ask each for the --size that this command prints for it"
    )


def _size(item: str) -> tuple[str, int]:
    name, equals, columns = item.partition("=")
    if not (name and equals and columns.isascii() and columns.isdigit() and int(columns)):
        raise ConfigError(f"--size {item}: NAME=COLUMNS was expected, as in --size bank=12; correct it")
    return name, int(columns)
