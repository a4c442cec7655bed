"""Groups of options that several commands take.

A command names a group in its signature, and each field of the group becomes an option of the command. For example,

    def line(party: Name, peers: PeersFile = Path("peers.toml"), session: SessionOptions = SessionOptions()) -> None:

has --certs, --listen and so on. Their defaults are those of the group object in the signature.

Terms: the *aligned row order* is the common order of rows that `securevfl align` wrote next to a table. The *file of
peers* lists the parties and their addresses. A *consent sheet* lists everything that a job discloses about a party's
table, and the *ledger* of a party records what was disclosed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

import typer

from securevfl.base.files import STANDARD_OUTPUT, check_writable, write_atomic
from securevfl.cli.database_tables import with_stored_queries
from securevfl.data.query_rows import file_of_table
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from securevfl.consent.consent_sheet import ConsentSheet
    from securevfl.data.column_types import ColumnType
    from securevfl.data.duplicates import Duplicates
    from securevfl.data.party import Party
    from securevfl.data.read_options import ReadOptions
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.job import Job
    from securevfl.organisations.peer_settings import PeerSettings
    from securevfl.training.cross_validation import CrossValidation
    from securevfl.training.tuning import Tuning
from securevfl.cli.event_output import events
from securevfl.cli.json_output import write_results
from securevfl.cli.party_options import (
    Certs,
    ColumnTypes,
    Data,
    Digest,
    Html,
    IdColumn,
    JobRepeatedIds,
    Json,
    LabelColumn,
    Ledger,
    Listen,
    Log,
    Name,
    Patience,
    RepeatedIds,
    Timeout,
    Verbose,
)


def pair(option: str, item: str, form: str, example: str, fits: Callable[[str], bool] = bool) -> tuple[str, str]:
    """Split the argument of an option, such as NAME=FILE.

    Args:
        option: name of the option, such as --data.
        item: the argument of the option.
        form: the expected form of the argument, such as NAME=FILE.
        example: an example of an argument, for the error.
        fits: function that returns whether the second part is valid.

    Returns:
        Both parts.

    Raises:
        ConfigError: a part is missing or invalid.
    """
    name, _, value = item.partition("=")
    if not (name and fits(value)):
        raise ConfigError(
            f"{option} {item} is not of the form {form}",
            f"write it as in {option} {example}",
            code="SVFL-COMMAND-USAGE",
        )
    return name, value


def _check_names(option: str, items: Sequence[str], names: Collection[str]) -> None:
    """Raise ConfigError if an argument of the form NAME=... names none of the parties."""
    for item in items:
        name, equals, argument = item.partition("=")
        if equals and name not in names:
            raise ConfigError(
                f"{option} {item} begins with {name!r}, and the parties of this command are {', '.join(names)}",
                f"write it as in {option} {next(iter(names))}={argument}",
                code="SVFL-PARTIES-NAME",
                party=name,
            )


def named_files(data: list[str] | None) -> dict[str, Path]:
    """Return the file of each party from arguments NAME=FILE; raise ConfigError if a party has two files."""
    files: dict[str, Path] = {}
    for item in data or []:
        name, path = pair("--data", item, "NAME=FILE", "bank=bank.csv")
        if name in files:
            raise ConfigError(
                f"--data names two files for {name}", "rename or drop one", code="SVFL-COMMAND-USAGE", party=name
            )
        files[name] = file_of_table(path)
    return files


@dataclass(frozen=True)
class TablesOptions:
    """Options of commands that read the tables of several parties."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="A party's table: .csv, .csv.gz, .parquet, .arrow, .npz or a folder, or the address of a PostgreSQL "
            "database (postgresql://..., with --query). Repeat for each party.",
        ),
    ] = None
    query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SELECT",
            help="The SQL query that reads the table of the party NAME from its database. NAME= may be left out if "
            "only one party's table is in a database. Repeatable, once for each party.",
        ),
    ] = None
    id_column: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Column on which rows are joined, by default id; several columns, separated by commas, form one key. "
            "NAME=COLUMN applies to one party. Repeatable.",
        ),
    ] = None
    label_column: Annotated[
        str, typer.Option("--label", metavar="COLUMN", help="Column of labels, at one party only.")
    ] = "y"

    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE.TOML",
            help='The types of a party\'s columns, as in: branch = "category". By default those under columns in the '
            "job file. Repeatable.",
        ),
    ] = None

    duplicates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]refuse|first|last",
            help="What happens if several rows have one id, at all parties or at one; by default what the job file "
            "states under duplicates, or refuse. Repeatable.",
        ),
    ] = None

    def repeated_ids(self, job_file: Path, names: Collection[str]) -> dict[str, Duplicates]:
        """Return how each party treats several rows with one id: "refuse", "first" or "last"."""
        from securevfl.data.duplicates import check_duplicates
        from securevfl.job import duplicates_of

        values = duplicates_of(job_file, names)
        for item in self.duplicates or ():
            name, equals, value = item.partition("=")
            checked = check_duplicates(value if equals else item, "--duplicates")
            values |= {name: checked} if equals else dict.fromkeys(names, checked)
        return values

    def check_names(self, names: Collection[str]) -> None:
        """Raise ConfigError if an option is about a party whose table this command does not read."""
        for option, items in (("--id", self.id_column), ("--columns", self.columns), ("--duplicates", self.duplicates)):
            _check_names(option, items or (), names)

    def options(self, job_file: Path, names: Collection[str], drop: Sequence[str] = ()) -> dict[str, ReadOptions]:
        """Return the options for reading each party's table: id and label columns, declared types, duplicate ids."""
        from securevfl.data.read_options import ReadOptions

        self.check_names(names)
        ids, types = self.id_columns(names), self.types(job_file)
        duplicates = self.repeated_ids(job_file, names)
        return {
            name: ReadOptions(
                id_column=ids[name],
                label_column=self.label_column,
                drop=drop,
                declared=types.get(name, {}),
                duplicates=duplicates[name],
            )
            for name in names
        }

    def types(self, job_file: Path) -> dict[str, dict[str, ColumnType]]:
        """Return the declared types of each party's columns, from the job file and from --columns."""
        from securevfl.job import column_types_in, column_types_of

        types = column_types_of(job_file)
        for item in self.columns or ():
            name, path = pair("--columns", item, "NAME=FILE.TOML", "bank=bank.toml")
            types[name] = column_types_in(path)
        return types

    def files(self, job_file: Path) -> dict[str, Path]:
        """Return each party's file, from the options or else from the job file."""
        from securevfl.job import tables_of

        files = with_stored_queries(tuple(self.data or ()), tuple(self.query or ()))
        return named_files(list(files)) or tables_of(job_file)

    def id_columns(self, names: Collection[str]) -> dict[str, str]:
        """Return the id column of each party: the one that --id names for this party, or else for all parties."""
        default, by_party = "id", dict[str, str]()
        for item in self.id_column or ():
            name, equals, column = item.partition("=")
            if equals and name in names:
                by_party[name] = column
            else:
                default = item
        return dict.fromkeys(names, default) | by_party

    def read(
        self, job_file: Path, job: Job | None = None, *, drop: Sequence[str] = ()
    ) -> tuple[list[Party], dict[str, list[str]]]:
        """Read the parties' tables.

        Args:
            job_file: the job file, which may name the tables.
            job: the job. With a job, large Parquet files stay on disk while it trains.
            drop: columns that are not read, in addition to those that the job drops.

        Returns:
            The parties, and the ids that each of them lacks.

        Raises:
            ConfigError: there are fewer than two tables.
        """
        from securevfl.data.load import read_parties
        from securevfl.display.progress import progress

        files = self.files(job_file)
        if len(files) < 2:
            raise ConfigError(
                f"there are {len(files)} tables, and at least two parties are needed",
                "give --data NAME=FILE for each party, or name the files in the job file under data",
                code="SVFL-PARTIES-COUNT",
            )
        options = self.options(job_file, files, drop if job is None else (*drop, *job.prepare.drop))
        with progress("reading") as on_progress:
            parties, missing = read_parties(files, options, job=job, on_progress=on_progress)
        for name, lacking in missing.items():
            if lacking:
                typer.echo(
                    f"{name} lacks {len(lacking):,} ids that other parties have; these rows are left out", err=True
                )
        return parties, missing


@dataclass(frozen=True)
class SizedTablesOptions(TablesOptions):
    """Options of commands that read either all tables, or one party's table and the sizes of the others."""

    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMNS",
            help="A party whose table is not on this computer, and the number of its prepared columns, which its "
            "sheet states.",
        ),
    ] = None
    classes: Annotated[int | None, typer.Option(min=2, help="Number of classes, if you have no labels.")] = None

    @property
    def alone(self) -> bool:
        """Whether only one party's table is given."""
        return bool(self.size) or len(self.data or ()) == 1

    def one_side(self, job: Job, job_file: Path) -> tuple[Party, dict[str, int]]:
        """Read this party's table, and take the sizes of the other parties' tables from --size.

        If there is a peers.toml next to the job, it names the parties.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            job_file: path of the job file.

        Returns:
            The party, with its rows in the aligned order, and the numbers of columns of the others, the leading
            party first.

        Raises:
            ConfigError: a table or a size is missing.
        """
        from securevfl.data.load import read_aligned
        from securevfl.transport.peers import Peers

        files = named_files(self.data)
        if len(files) != 1:
            raise ConfigError(
                f"--data names {len(files)} tables together with --size",
                "give only your table",
                code="SVFL-COMMAND-USAGE",
            )
        ((name, path),) = files.items()
        pairs = [pair("--size", item, "NAME=COLUMNS", "bank=12", _is_count) for item in self.size or ()]
        sizes = {other: int(columns) for other, columns in pairs}
        peers_file = job_file.parent / "peers.toml"
        names = Peers.load(peers_file).parties if peers_file.exists() else tuple(dict.fromkeys((*sizes, name)))
        others = [other for other in names if other != name]
        if others:
            _check_names("--size", self.size or (), others)
        missing = [other for other in others if other not in sizes]
        party = read_aligned(name, path, job, self.options(job_file, [name], job.prepare.drop)[name])
        if missing or len(names) < 2:
            options = " ".join(f"--size {other}=COLUMNS" for other in missing) or "--size NAME=COLUMNS"
            raise ConfigError(
                "neither tables nor sizes of all parties are given",
                f"add {options}\n{sizes_line(job, party)}",
                code="SVFL-COMMAND-USAGE",
            )
        return party, {other: sizes[other] for other in others}


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def sizes_line(job: Job, party: Party) -> str:
    """Return a line that explains which columns --size counts, and which --size other parties pass for this party."""
    from securevfl.families.table_preparation import prepare_party

    prepared, in_file = len(prepare_party(job, party, party.register).columns), len(party.columns)
    difference = "" if prepared == in_file else f" ({in_file} in your file)"
    return (
        "--size counts columns after the job has prepared them; a missing value or a text in a file may add columns. "
        f"The other parties pass --size {party.name}={prepared} for your table{difference}. Ask each of them for the "
        "--size that this command prints for theirs"
    )


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search for the best values of a job's numeric options, such as l2."""

    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUES",
            help="Values of a numeric option of the job to choose from, as in l2=0.01,0.1,1. If repeated, all "
            "combinations are tried. All parties must give the same values.",
        ),
    ] = None
    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Cross-validate on the columns of the party with labels. Nothing is sent; needs --grid."
        ),
    ] = False
    folds: Annotated[int, typer.Option(min=2, help="With --alone: number of folds of the cross-validation.")] = 5
    scoring: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --alone: the metric, by its name in scikit-learn, such as roc_auc; by default the loss.",
        ),
    ] = None
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --grid and --party: file for your part of the chosen model; by default NAME.model.json next to "
            "the data.",
        ),
    ] = None
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the state of a search with --party, from which the same command resumes; by default "
            "DATA.search.",
        ),
    ] = None

    def check(self, party: str | None) -> None:
        """Raise ConfigError if --alone is given without --grid, or together with --party."""
        if self.alone and (not self.grid or party is not None):
            raise ConfigError(
                "--alone needs --grid, and reads a table on this computer",
                "write it as in: compare job.toml --data bank=bank.csv --grid l2=0.01,0.1 --alone",
                code="SVFL-COMMAND-USAGE",
            )

    def cross_validation(self, job_file: Path, tables: TablesOptions) -> CrossValidation:
        """Cross-validate on the table of the party with labels."""
        from securevfl.data.load import read_in_order
        from securevfl.job import Job
        from securevfl.training.cross_validation import cross_validate
        from securevfl.training.tuning_grid import read_grid

        job = Job.load(job_file)
        files = tables.files(job_file)
        readers = tables.options(job_file, files, job.prepare.drop)
        parties = [read_in_order(name, path, readers[name]) for name, path in files.items()]
        labelled = [party for party in parties if party.active]
        if len(labelled) != 1:
            raise ConfigError(
                f"{len(labelled)} of the tables have labels, and one is needed",
                "name the table with labels, as in --data bank=bank.csv",
                code="SVFL-PARTIES-LABELS",
            )
        return cross_validate(job, read_grid(self.grid or ()), labelled[0], folds=self.folds, scoring=self.scoring)

    def tuning(
        self,
        job: Job,
        parties: list[Party],
        ledgers: Mapping[str, DisclosureLedger] | None,
        on_model: Callable[[str], object],
    ) -> Tuning:
        """Search with all tables on this computer."""
        from securevfl.training.tuning import tune
        from securevfl.training.tuning_grid import read_grid

        return tune(job, read_grid(self.grid or ()), parties, ledgers=ledgers, on_model=on_model)


@dataclass(frozen=True)
class TableOptions:
    """Options of commands by which one of several organisations reads its table."""

    party: Name
    data: Data
    id_column: IdColumn = "id"
    label_column: LabelColumn = "y"
    columns: ColumnTypes = None
    duplicates: JobRepeatedIds = None

    def in_order(self) -> Party:
        """Read the table into memory, in the aligned row order if there is one."""
        from securevfl.data.load import read_in_order

        return read_in_order(self.party, self.data, self._options(declared_in(self.columns), "refuse"))

    def _options(
        self, declared: dict[str, ColumnType], duplicates: Duplicates, drop: Sequence[str] = ()
    ) -> ReadOptions:
        """Return the options for reading the table; `duplicates` applies unless the command line has --duplicates."""
        from securevfl.data.duplicates import check_duplicates
        from securevfl.data.read_options import ReadOptions

        stated = duplicates if self.duplicates is None else check_duplicates(self.duplicates, "--duplicates")
        return ReadOptions(
            id_column=self.id_column,
            label_column=self.label_column,
            drop=drop,
            declared=declared,
            duplicates=stated,
        )

    def aligned(self, job: Job, job_file: Path) -> Party:
        """Read the table for a job, in the aligned row order, by the types in --columns or else in the job file."""
        from securevfl.data.load import read_aligned
        from securevfl.display.progress import progress
        from securevfl.job import column_types_of, duplicates_of

        declared = column_types_of(job_file).get(self.party, {}) if self.columns is None else declared_in(self.columns)
        options = self._options(declared, duplicates_of(job_file, [self.party])[self.party], job.prepare.drop)
        with progress("reading") as on_progress:
            return read_aligned(self.party, self.data, job, options, on_progress=on_progress)


def declared_in(path: Path | None) -> dict[str, ColumnType]:
    """Return the types of columns that a file declares; none without a file."""
    from securevfl.job import column_types_in

    return {} if path is None else column_types_in(path)


@dataclass(frozen=True)
class IdOptions:
    """Options of commands that read the rows of one file by id."""

    id_column: IdColumn = "id"
    duplicates: RepeatedIds = "refuse"

    @property
    def options(self) -> ReadOptions:
        """The same options as `ReadOptions`, the argument of functions that read tables."""
        from securevfl.data.duplicates import check_duplicates
        from securevfl.data.read_options import ReadOptions

        return ReadOptions(id_column=self.id_column, duplicates=check_duplicates(self.duplicates, "--duplicates"))


@dataclass(frozen=True)
class ConsentOptions:
    """Options by which a party agrees to its consent sheet, and names the ledger that counts its disclosures."""

    ledger: Ledger = None
    accept: Digest = None

    def asking(self, party: str, command: str) -> tuple[DisclosureLedger, Callable[[ConsentSheet], None]]:
        """Return the party's ledger, and a function that asks for its consent to a sheet.

        Args:
            party: name of the party.
            command: the beginning of the command line that a user repeats to agree.

        Returns:
            The party's ledger and the function.

        Raises:
            ConfigError: --accept is not a digest.
        """
        from securevfl.cli.consent_prompt import agree, check_digest
        from securevfl.consent.agreed_sheets import AgreedSheets
        from securevfl.disclosure.ledger import DisclosureLedger

        check_digest(self.accept)
        ledger = DisclosureLedger.open(party, self.ledger)
        return ledger, partial(agree, AgreedSheets(ledger), self.accept, command)


@dataclass(frozen=True)
class ReportOptions:
    """Options for the files to which a command writes its results."""

    report_json: Json = None
    page: Html = None

    def check(self) -> None:
        """Raise StorageError unless the files can be written."""
        check_writable(self.report_json, self.page)

    def write(self, command: str, results: Callable[[], Mapping[str, Any]], page: Callable[[], str]) -> None:
        """Write the results and the page to the files that are named.

        Args:
            command: the command, which selects the schema of the results.
            results: returns the results.
            page: returns the page, as HTML.
        """
        write_results(self.report_json, command, results)
        if self.page is not None:
            write_atomic(self.page, page().encode())


class PeerKeywords(TypedDict):
    """Keyword arguments of library functions for reaching the peers."""

    certs: Path | None
    listen: str | None
    timeout: float
    patience: float


@dataclass(frozen=True)
class PeerOptions:
    """Options by which a party reaches the others and waits for them."""

    certs: Certs = None
    listen: Listen = None
    timeout: Timeout = 600.0
    patience: Patience = 60.0

    @property
    def keys(self) -> PeerKeywords:
        """The options as keyword arguments for functions such as `join`, without the file of peers."""
        return {"certs": self.certs, "listen": self.listen, "timeout": self.timeout, "patience": self.patience}

    def settings(self, peers: Path) -> PeerSettings:
        """Return the settings for this file of peers."""
        from securevfl.organisations.peer_settings import PeerSettings

        return PeerSettings.of(peers, **self.keys)


@dataclass(frozen=True)
class SessionOptions(PeerOptions):
    """Options by which a party reaches the others and reports events."""

    verbose: Verbose = False
    log: Log = None

    @contextmanager
    def events(self, me: str = "", peers: Path | None = None) -> Iterator[None]:
        """Print events on stderr and append them to the log while the `with` block runs.

        Args:
            me: name of this party.
            peers: the file of peers; with it, the status line names the parties for which this party waits.

        Yields:
            Nothing.
        """
        from securevfl.cli.live import live
        from securevfl.transport.peers import Peers

        others = [] if peers is None else [name for name in Peers.load(peers).parties if name != me]
        waiting = live(others, "") if others else nullcontext()
        with waiting, events(self.verbose, self.log):
            yield


def help_text(command: Callable[..., None]) -> str:
    """Return the docstring of a command with one line for each paragraph, which a terminal of any width can wrap."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (getdoc(command) or "").split("\n\n"))


def expand_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its option groups, for typer.

    Args:
        command: the function of the command.

    Returns:
        The expanded command.
    """
    original = signature(command, eval_str=True)
    groups = {name: item for name, item in original.parameters.items() if is_dataclass(item.annotation)}
    expanded: list[Parameter] = []
    for name, parameter in original.parameters.items():
        if name not in groups:
            expanded.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(parameter.annotation, include_extras=True)
        for field in fields(parameter.annotation):
            default = field.default if parameter.default is Parameter.empty else getattr(parameter.default, field.name)
            option = Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
            expanded.append(option.replace(default=Parameter.empty) if default is MISSING else option)

    def run(**options: Any) -> None:
        text_to_stderr = STANDARD_OUTPUT in options.values()
        for name, parameter in groups.items():
            kind = parameter.annotation
            options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
        with redirect_stdout(sys.stderr) if text_to_stderr else nullcontext():
            command(**options)

    run.__name__, run.__doc__ = command.__name__, help_text(command)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    run.__signature__ = original.replace(parameters=expanded)  # type: ignore[attr-defined]
    return run
