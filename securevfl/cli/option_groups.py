"""Groups of options that several commands take.

A command names a group in its signature, and the fields of the group become options. For example,

    def line(party: Name, peers: PeersFile = Path("peers.toml"), meeting: SessionOptions = SessionOptions()) -> None:

has --certs, --listen and so on, with the defaults of the group in its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

import typer

from securevfl.base.files import check_writable, write_atomic
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from securevfl.consent.consent_sheet import ConsentSheet
    from securevfl.data.party import Party
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.job import Job
    from securevfl.organisations.peer_settings import PeerSettings
from securevfl.cli.event_output import events
from securevfl.cli.party_options import (
    Certs,
    Data,
    Digest,
    Html,
    IdColumn,
    Json,
    LabelColumn,
    Ledger,
    Listen,
    Log,
    Name,
    Patience,
    Timeout,
    Verbose,
)


def pair(option: str, item: str, form: str, example: str, fits: Callable[[str], bool] = bool) -> tuple[str, str]:
    """Part an option of two, as NAME=FILE. ConfigError if one of them is missing, or the second does not fit."""
    name, _, value = item.partition("=")
    if not (name and fits(value)):
        raise ConfigError(f"{option} {item}: {form} was expected, as in {option} {example}; correct it")
    return name, value


def named_files(data: list[str] | None) -> dict[str, Path]:
    """Return the file of each party. ConfigError for a party with two."""
    files: dict[str, Path] = {}
    for item in data or []:
        name, path = pair("--data", item, "NAME=FILE", "bank=bank.csv")
        if name in files:
            raise ConfigError(f"--data: one file for each party was expected, {name} has two; rename or drop one")
        files[name] = Path(path)
    return files


@dataclass(frozen=True)
class TablesOptions:
    """Options by which one command reads the tables of several parties."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="A party's table: .csv, .csv.gz, .parquet or .npz. Repeat for each party."
        ),
    ] = None
    id_column: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Column that rows are joined on, id by default; several, parted by commas, are one key. NAME=COLUMN "
            "is one party's. Repeatable.",
        ),
    ] = None
    label_column: Annotated[
        str, typer.Option("--label", metavar="COLUMN", help="Column of labels, at one party only.")
    ] = "y"

    def files(self, job_file: Path) -> dict[str, Path]:
        """Return each party's file: those given, or else those that the job file names."""
        from securevfl.job import tables_of

        return named_files(self.data) or tables_of(job_file)

    def id_columns(self, names: Collection[str]) -> dict[str, str]:
        """Return the column of ids of each of these parties: the one given for it, or the one for all."""
        whole, own = "id", dict[str, str]()
        for item in self.id_column or ():
            name, equals, column = item.partition("=")
            if equals and name in names:
                own[name] = column
            else:
                whole = item
        return dict.fromkeys(names, whole) | own

    def read(self, job_file: Path, job: Job | None = None) -> tuple[list[Party], dict[str, list[str]]]:
        """Read the parties, and return the ids that each lacks; with a job large Parquet files are read from disk as it
        trains."""
        from securevfl.data.load import read_parties
        from securevfl.display.progress import progress

        files, labels = self.files(job_file), self.label_column
        if len(files) < 2:
            raise ConfigError(
                f"--data: two or more parties were expected, {len(files)} came; give --data NAME=FILE for each, or "
                "name their files in the job file under data"
            )
        ids = self.id_columns(files)
        with progress("reading") as on_progress:
            parties, missing = read_parties(files, id_column=ids, label_column=labels, job=job, on_progress=on_progress)
        for name, lacking in missing.items():
            if lacking:
                typer.echo(f"{name} lacks {len(lacking):,} ids that others have; these rows are left out", err=True)
        return parties, missing


@dataclass(frozen=True)
class SizedTablesOptions(TablesOptions):
    """Options by which a command reads all tables, or one party's own and of the others no more than their sizes."""

    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMNS",
            help="A party whose table is not here, and how many columns its own sheet says that it has, as prepared.",
        ),
    ] = None
    classes: Annotated[int | None, typer.Option(min=2, help="How many classes there are, if you have no labels.")] = (
        None
    )

    @property
    def alone(self) -> bool:
        """Whether one party's own table is given and no other."""
        return bool(self.size) or len(self.data or ()) == 1

    def one_side(self, job: Job, job_file: Path) -> tuple[Party, dict[str, int]]:
        """Return this party, its rows as an alignment has left them, and the columns of the others, the leading one
        first.

        Who takes part is in peers.toml beside the job, where there is one. ConfigError for what is missing.
        """
        from securevfl.data.load import read_aligned
        from securevfl.transport.peers import Peers

        files = named_files(self.data)
        if len(files) != 1:
            raise ConfigError(f"--data: one table was expected beside --size, {len(files)} came; give your own")
        ((name, path),) = files.items()
        given = [pair("--size", item, "NAME=COLUMNS", "bank=12", _is_count) for item in self.size or ()]
        sizes = {other: int(columns) for other, columns in given}
        beside = job_file.parent / "peers.toml"
        names = Peers.load(beside).parties if beside.exists() else (*sizes, name)
        missing = [other for other in names if other not in sizes and other != name]
        ids = self.id_columns(files)[name]
        own = read_aligned(name, path, job, id_column=ids, label_column=self.label_column)
        if missing or len(names) < 2:
            shown = " ".join(f"--size {other}=COLUMNS" for other in missing) or "--size NAME=COLUMNS"
            raise ConfigError(
                "--data: the tables of all parties were expected, or the sizes of those that are not here; add "
                f"{shown}\n{sizes_line(job, own)}"
            )
        return own, {other: sizes[other] for other in names if other != name}


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def sizes_line(job: Job, own: Party) -> str:
    """Say which columns --size counts, what the others give for this party, and where its own numbers come from."""
    from securevfl.families.table_preparation import prepare_party

    made, brought = len(prepare_party(job, own, own.register).columns), len(own.columns)
    differs = "" if made == brought else f", of {brought} in your file"
    return (
        f"sizes are of columns as the job prepares them, so a gap or a text in a file may add some: the others give "
        f"--size {own.name}={made} for you{differs}; ask each for the --size that this command prints for it"
    )


@dataclass(frozen=True)
class TableOptions:
    """Options by which one party among several organisations reads its own table."""

    party: Name
    data: Data
    id_column: IdColumn = "id"
    label_column: LabelColumn = "y"

    def in_order(self) -> Party:
        """Read the table into memory, its rows as an alignment has left them if it has."""
        from securevfl.data.load import read_in_order

        return read_in_order(self.party, self.data, id_column=self.id_column, label_column=self.label_column)

    def aligned(self, job: Job) -> Party:
        """Read the table for a job, in the row order that is shared."""
        from securevfl.data.load import read_aligned
        from securevfl.display.progress import progress

        ids, labels = self.id_column, self.label_column
        with progress("reading") as on_progress:
            return read_aligned(self.party, self.data, job, id_column=ids, label_column=labels, on_progress=on_progress)


@dataclass(frozen=True)
class ConsentOptions:
    """The options by which a party agrees to what it will tell, and counts it."""

    ledger: Ledger = None
    accept: Digest = None

    def asking(self, party: str, command: str) -> tuple[DisclosureLedger, Callable[[ConsentSheet], None]]:
        """Return the party's ledger, and what asks for its consent to a sheet. ConfigError if --accept is no digest."""
        from securevfl.cli.consent_prompt import agree, check_digest
        from securevfl.consent.agreed_sheets import AgreedSheets
        from securevfl.disclosure.ledger import DisclosureLedger

        check_digest(self.accept)
        ledger = DisclosureLedger.open(party, self.ledger)
        return ledger, partial(agree, AgreedSheets(ledger), self.accept, command)


@dataclass(frozen=True)
class ReportOptions:
    """The files that a command writes what it found to."""

    report_json: Json = None
    page: Html = None

    def check(self) -> None:
        """StorageError unless they can be written."""
        check_writable(self.report_json, self.page)

    def write(self, figures: Callable[[], str], page: Callable[[], str]) -> None:
        """Write the figures and the page to those files that are named."""
        for path, text in ((self.report_json, figures), (self.page, page)):
            if path is not None:
                write_atomic(path, text().encode())


class PeerKeywords(TypedDict):
    """The options of a meeting that functions of the library take by the same names."""

    certs: Path | None
    listen: str | None
    timeout: float
    patience: float


@dataclass(frozen=True)
class PeerOptions:
    """Options by which a party finds the others and waits for them."""

    certs: Certs = None
    listen: Listen = None
    timeout: Timeout = 600.0
    patience: Patience = 60.0

    @property
    def keys(self) -> PeerKeywords:
        """The options as arguments of a function of the library, without the file of peers."""
        return {"certs": self.certs, "listen": self.listen, "timeout": self.timeout, "patience": self.patience}

    def venue(self, peers: Path) -> PeerSettings:
        """Make the venue of this file of peers."""
        from securevfl.organisations.peer_settings import PeerSettings

        return PeerSettings.of(peers, **self.keys)


@dataclass(frozen=True)
class SessionOptions(PeerOptions):
    """Options by which a party finds the others, and by which it says what happens."""

    verbose: Verbose = False
    log: Log = None

    @contextmanager
    def events(self, me: str = "", peers: Path | None = None) -> Iterator[None]:
        """Show events on stderr, and append them to the log if there is one; with `peers`, say whom `me` waits for."""
        from securevfl.cli.live import live
        from securevfl.transport.peers import Peers

        others = [] if peers is None else [name for name in Peers.load(peers).parties if name != me]
        waiting = live(others, "", verbose=self.verbose) if others else nullcontext()
        with waiting, events(self.verbose, self.log):
            yield


def expand_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its groups, as typer reads them from its signature."""
    own = signature(command, eval_str=True)
    groups = {name: each for name, each in own.parameters.items() if is_dataclass(each.annotation)}
    shown: list[Parameter] = []
    for name, each in own.parameters.items():
        if name not in groups:
            shown.append(each.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(each.annotation, include_extras=True)
        for field in fields(each.annotation):
            default = field.default if each.default is Parameter.empty else getattr(each.default, field.name)
            given = Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
            shown.append(given.replace(default=Parameter.empty) if default is MISSING else given)

    def run(**options: Any) -> None:
        for name, each in groups.items():
            kind = each.annotation
            options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
        command(**options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in shown}
    run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return run
