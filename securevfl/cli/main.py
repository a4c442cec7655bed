"""The command `securevfl`. What a command needs is imported when it runs, so that help is quick.

Errors of securevfl go to stderr as they are, one line a problem, and end the command with exit code 2.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from securevfl.base.extensions import load, named
from securevfl.base.files import check_writable
from securevfl.base.machine import one_heap
from securevfl.base.version import __version__
from securevfl.cli import certs_commands, ledger_command, looks_commands, part_command, party_options, serve_commands
from securevfl.cli import parties as parties_commands
from securevfl.cli.bench import bench
from securevfl.cli.party_options import Digest, MeetingOptions, PeersByJob, expanded
from securevfl.errors import ConfigError, DataNotice, SecureVFLError, StorageError

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.job import Job
    from securevfl.training.run import Run


@contextmanager
def _notices() -> Iterator[None]:
    """Show what is left out of a table as a line on stderr, once a command, however many models it trains."""

    usual, said = warnings.showwarning, set[str]()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, DataNotice):
            if str(message) not in said:
                typer.echo(str(message), err=True)
            said.add(str(message))
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataNotice)
        warnings.showwarning = show
        yield


TOOLS = "securevfl.tools"


class Commands(TyperGroup):
    """Commands whose expected errors are lines on stderr and not tracebacks; those of other packages come last."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in named(TOOLS) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find one of securevfl's; of another package, its name and where it is from, as nothing of it is loaded."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or (point := named(TOOLS).get(cmd_name)) is None:
            return own
        return TyperCommand(cmd_name, help=f"A command of {point.dist.name if point.dist else 'another package'}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load a command of another package when it is typed."""
        if args and super().get_command(ctx, args[0]) is None and (point := named(TOOLS).get(args[0])) is not None:
            tool = typer.Typer(name=args[0], no_args_is_help=True)
            load(point)[0](tool)
            return args[0], typer.main.get_command(tool), args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _notices():
                return super().invoke(ctx)
        except SecureVFLError as error:
            typer.echo("\n".join([str(error), *getattr(error, "__notes__", ())]), err=True)
            raise typer.Exit(2) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever reads stdout has had enough
            typer.echo(str(StorageError(error.filename or "a file", error)), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    name="securevfl",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train one model on columns that several organisations hold, without any of them showing another its own.",
    epilog="Start with: securevfl demo",
)

app.add_typer(bench, name="bench")
certs_commands.register(app)
parties_commands.register(app)
looks_commands.register(app)
part_command.register(app)
serve_commands.register(app)
ledger_command.register(app)

JobFile = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job: model, optimizer, protocol, batches.")]
DataFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--data", metavar="NAME=FILE", help="A party's table: .csv, .csv.gz, .parquet or .npz. Repeat for each party."
    ),
]
IdColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="COLUMN",
        help="Column that rows are joined on, id by default; several, parted by commas, are one key. NAME=COLUMN is "
        "one party's. Repeatable.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=COLUMNS",
        help="A party whose table is not here, and how many columns its own sheet says that it has, as prepared.",
    ),
]
Classes = Annotated[int | None, typer.Option(min=2, help="How many classes there are, if you have no labels.")]
LabelColumn = Annotated[str, typer.Option("--label", metavar="COLUMN", help="Column of labels, at one party only.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"securevfl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def demo() -> None:
    """Train a logistic regression of two parties on shares, sealed and in the open, and compare."""
    from securevfl.cli.demo import demo as run_demo
    from securevfl.cli.show import console

    run_demo(console())


@app.command()
def explain(
    job_file: JobFile,
    data: DataFiles = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = "y",
    size: Sizes = None,
    classes: Classes = None,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A party's disclosure ledger, if not among your user's data. Repeatable."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Every message that each party sends and receives, encryption, counts.")
    ] = False,
) -> None:
    """Say what each party would learn, before anything runs.

    With --data the sheet has each party's own figures and names every leak that would be refused. What was told before
    counts, as the disclosure ledgers on this computer have it. A party alone gives its own table, and --size for every
    other party; the digest below that sheet is what `securevfl join --accept` takes.
    """
    from securevfl.cli.show import console, sheet, sheet_width
    from securevfl.consent import consent_sheet

    job, out = _load(job_file), console()
    if size or (data and len(data) == 1):
        column = _id_columns(id_column, _files(data, job_file))
        own, others = party_options.one_side(job, job_file, data, size, id_column=column, label_column=label_column)
        text = consent_sheet.explain(job, [own], others=others, outputs=classes, ledgers=_ledgers(ledger, [own]))
        out.print(sheet(text if details else text.first, sheet_width(out)), soft_wrap=True)
        out.print(f"\ndigest: {text.digest}   (agree to it with securevfl join ... --accept {text.digest})")
        out.print(party_options.sizes_line(job, own), soft_wrap=True)
        return
    files = _files(data, job_file)
    parties = _helped(job, _read(files, id_column, label_column, job)[0]) if files else None
    text = consent_sheet.explain(job, parties, ledgers=_ledgers(ledger, parties))
    out.print(sheet(text if details else text.first, sheet_width(out)), soft_wrap=True)
    if not details:
        out.print("\nevery message, encryption and counts: --details")


@app.command()
def train(
    job_file: JobFile,
    data: DataFiles = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = "y",
    report_json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write job, metrics, history and costs here.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page for a browser here.")] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each party's own part of the model to DIR/NAME.json.")
    ] = None,
    predict: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Then predict these new rows, joined by id. Repeat for each party."),
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the predictions here, not on the screen.")
    ] = None,
    mbps: Annotated[float, typer.Option(min=0.001, help="Megabits a second between the parties.")] = 300.0,
    rtt_ms: Annotated[float, typer.Option(min=0.0, help="Milliseconds there and back between the parties.")] = 20.0,
    message_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds that handing on adds to a message; see securevfl line.")
    ] = 0.4,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Count what each party would tell in DIR/NAME.ledger. Not counted without: all is on this computer.",
        ),
    ] = None,
) -> None:
    """Train a job with all parties on this computer and print its metrics and costs.

    Tables are joined on the id column; ids that a party lacks go to stderr. Large Parquet files are copied into one of
    plain rows beside them, gone at the end, so that they need not fit in memory.
    Times are virtual: what separate computers on the given network would take.

    Example: securevfl train job.toml --data bank=bank.csv --data shop=shop.csv.gz --html run.html
    """
    from securevfl.cli.live import live, step_of
    from securevfl.cli.party_options import events
    from securevfl.consent.consent_sheet import explain
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.runtime.clock import Network
    from securevfl.training.comparison import metrics_alone
    from securevfl.training.run import write_report
    from securevfl.training.simulate import simulate

    job = _load(job_file)
    new = _files(predict, job_file) if predict else {}
    check_writable(report_json, html, predictions)
    check_writable(save, folder=True)
    parties, missing = _read(_files(data, job_file), id_column, label_column, job)
    parties = _helped(job, parties)
    network = Network(mbps=mbps, rtt_ms=rtt_ms, message_ms=message_ms)
    names = [party.name for party in parties]
    ledgers = None if ledger is None else {name: DisclosureLedger(ledger / f"{name}.ledger", name) for name in names}
    with live((), step_of(job)) as on_round, events(False, None):
        run = simulate(job, parties, network=network, on_round=on_round, ledgers=ledgers)
    if save is not None:
        run.save(save)
    if html is not None:
        lead = next(party for party in parties if party.active)
        run.report(html, alone=metrics_alone(job, lead), sheet=explain(job, parties).first)
    if report_json is not None:
        write_report(report_json, run, network=network, lacking={name: len(ids) for name, ids in missing.items()})
    _show(job, run)
    if new:
        from securevfl.cli.predictions import predict_files

        predict_files(run, new, predictions, id_columns=_id_columns(id_column, new))


def compare(
    job_file: JobFile,
    data: DataFiles = None,
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who you are, where the others are on machines of their own.")
    ] = None,
    peers: PeersByJob = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = "y",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page for a browser here.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Ask DIR/NAME.ledger of each party first, for all models, and count there; with --party the file.",
        ),
    ] = None,
    accept: Digest = None,
    meeting: MeetingOptions = MeetingOptions(),
) -> None:
    """See what the other parties' columns are worth: models of the labelled party alone, and of all together.

    Logistic regression, the same on bins of each column, and trees: on the labelled party's own columns, for which
    nothing is sent, then on all columns on shares. All are measured on the same held-out rows, once; none is kept. The
    job says which rows these are and how columns are prepared.

    All tables are on this computer, or with --party every party runs this on its own: it agrees once to all trainings,
    and its ledger has all measurements before the first.

    Example: securevfl compare job.toml --data bank=bank.csv --data shop=shop.csv.gz

    Example: securevfl compare job.toml --party shop --data shop.csv
    """
    if party is not None:
        from securevfl.cli.parties import compare_at

        check_writable(html)
        column = _id_columns(id_column, [party])[party]
        found = compare_at(job_file, party, data or [], peers, column, label_column, ledger, accept, meeting)
        if found is not None and html is not None:
            found.report(html)
        return
    from securevfl.cli.show import console
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.training.comparison import compare as run_all

    job, out = _load(job_file), console()
    check_writable(html)
    parties, _ = _read(_files(data, job_file), id_column, label_column)
    names = [party.name for party in parties]
    ledgers = None if ledger is None else {name: DisclosureLedger(ledger / f"{name}.ledger", name) for name in names}
    with console(err=True).status("comparing") as status:
        found = run_all(job, parties, ledgers=ledgers, on_model=lambda what: status.update(f"training: {what}"))
    out.print(str(found))
    if html is not None:
        found.report(html)


app.command()(expanded(compare))


def _show(job: Job, run: Run) -> None:
    """Print the metrics and costs of a run, and how many epochs it had where the job leaves that open."""
    from securevfl.cli.show import console, costs_table, figures
    from securevfl.consent.consent_sheet import most_epochs

    out = console()
    out.print(f"{figures(run.metrics, run.positive, run.spread)} on the {run.evaluated_on}", soft_wrap=True)
    if not job.epochs:
        why = "as what they tell of columns is accepted" if "columns" in job.accepts else "that the guards let through"
        out.print(f"epochs = {run.job.epochs}: the most, up to {most_epochs(job)}, {why}", soft_wrap=True)
    out.print(costs_table(run.costs))


def _helped(job: Job, parties: list[Party]) -> list[Party]:
    """Return the parties, and where the job can't do without one those that have no table, as FDML's server."""
    from securevfl.data.party import Helper, check_parties
    from securevfl.errors import PartiesError

    lead, others = check_parties(parties)
    try:
        roles = job.method.cast([lead, *others])
        job.method.assigned(job, roles, {party.name: len(party.columns) for party in parties})
    except PartiesError:
        names = {party.name for party in parties}
        return parties + [Helper(name, role) for name, role in job.method.helpers if name not in names]
    return parties


def _ledgers(files: list[Path] | None, parties: list[Party] | None) -> dict[str, DisclosureLedger]:
    """Find the ledgers in these files, and those of other parties that are where they are by default."""
    from securevfl.disclosure.ledger import DisclosureLedger, default_ledger

    found = {party.name: DisclosureLedger(default_ledger(party.name), party.name) for party in parties or ()}
    given = [DisclosureLedger.find(path) for path in files or ()]
    return {name: each for name, each in found.items() if each.path.exists()} | {each.party: each for each in given}


def _load(path: Path) -> Job:
    """Load the job of a file; each problem's line begins with the file."""
    from securevfl.job import Job

    try:
        return Job.load(path)
    except ConfigError as error:
        lines = str(error).splitlines()
        raise ConfigError(
            "\n".join(line if line.startswith(f"{path}:") else f"{path}: {line}" for line in lines)
        ) from None


@app.command()
def audit(
    job_file: JobFile,
    data: DataFiles = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = "y",
    size: Sizes = None,
    classes: Classes = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page here as HTML.")] = None,
) -> None:
    """Check, simulate and attack a job on its tables; exit code 1 if anything exceeds what is declared and accepted.

    A party alone gives its own table, and --size for every other party: in their place stand columns of noise, and
    labels that follow all columns a little.
    """
    from securevfl.audit.report import with_stand_ins
    from securevfl.cli.audit import audit_command

    job, made_up = _load(job_file), []
    check_writable(html)
    if size or (data and len(data) == 1):
        column = _id_columns(id_column, _files(data, job_file))
        own, others = party_options.one_side(job, job_file, data, size, id_column=column, label_column=label_column)
        parties, made_up = with_stand_ins(job, own, others, classes or 2), list(others)
    else:
        parties = _helped(job, _read(_files(data, job_file), id_column, label_column)[0])
    raise typer.Exit(audit_command(job, parties, html, made_up))


def _files(data: list[str] | None, job_file: Path) -> dict[str, Path]:
    """Each party's file: those given, or else those that the job file names."""
    from securevfl.job import tables_of

    files: dict[str, Path] = {}
    for item in data or []:
        name, equals, path = item.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"--data {item}: NAME=FILE was expected, as in --data bank=bank.csv; correct it")
        if name in files:
            raise ConfigError(f"--data: one file for each party was expected, {name} has two; rename or drop one")
        files[name] = Path(path)
    return files or tables_of(job_file)


def _id_columns(given: list[str] | None, names: Collection[str]) -> dict[str, str]:
    """Return the column of ids of each of these parties: the one given for it, or the one for all."""
    whole, own = "id", dict[str, str]()
    for item in given or ():
        name, equals, column = item.partition("=")
        if equals and name in names:
            own[name] = column
        else:
            whole = item
    return dict.fromkeys(names, whole) | own


def _read(
    files: dict[str, Path], id_column: list[str] | None, label_column: str, job: Job | None = None
) -> tuple[list[Party], dict[str, list[str]]]:
    """Read the parties; with a job large Parquet files are read from disk as it trains.

    Also returns the ids that each party lacks.
    """
    from securevfl.data.load import read_parties
    from securevfl.display.progress import progress

    if len(files) < 2:
        raise ConfigError(
            f"--data: two or more parties were expected, {len(files)} came; give --data NAME=FILE for each, or name "
            "their files in the job file under data"
        )
    columns = _id_columns(id_column, files)
    with progress("reading") as on_rows:
        parties, missing = read_parties(files, id_column=columns, label_column=label_column, job=job, on_rows=on_rows)
    for name, ids in missing.items():
        if ids:
            typer.echo(f"{name} lacks {len(ids):,} ids that others have; these rows are left out", err=True)
    return parties, missing


def main() -> None:
    """Entry point of the command."""
    one_heap()
    app()


if __name__ == "__main__":
    main()
