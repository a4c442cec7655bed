"""The command `securevfl`. What a command needs is imported when it runs, so that help is quick.

Errors of securevfl go to stderr as they are, one line a problem, and end the command with exit code 2.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from securevfl.base.extensions import available_entry_points, load_entry_point
from securevfl.base.files import check_writable, write_atomic
from securevfl.base.machine import use_one_heap
from securevfl.base.version import __version__
from securevfl.cli import (
    certs_commands,
    correlate_command,
    describe_command,
    fairness_command,
    ledger_command,
    line_command,
    model_commands,
    option_groups,
    serve_commands,
)
from securevfl.cli import party_commands as parties_commands
from securevfl.cli import party_options as options
from securevfl.cli.bench import bench
from securevfl.errors import ConfigError, DataNotice, SecureVFLError, StorageError

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.job import Job
    from securevfl.training.comparison import Comparison


@contextmanager
def _notices() -> Iterator[None]:
    """Show what is left out of a table as a line on stderr, once a command, however many models it trains."""

    usual, said = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, DataNotice):
            usual(message, category, *where, **more)
        elif str(message) not in said:
            typer.echo(str(message), err=True)
            said.add(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataNotice)
        warnings.showwarning = show
        yield


TOOLS = "securevfl.tools"


class Commands(TyperGroup):
    """Commands whose expected errors are lines on stderr and not tracebacks; those of other packages come last."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in available_entry_points(TOOLS) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find one of securevfl's; of another package, its name and where it is from, as nothing of it is loaded."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or (point := available_entry_points(TOOLS).get(cmd_name)) is None:
            return own
        return TyperCommand(cmd_name, help=f"A command of {point.dist.name if point.dist else 'another package'}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load a command of another package when it is typed."""
        if (
            args
            and super().get_command(ctx, args[0]) is None
            and (point := available_entry_points(TOOLS).get(args[0])) is not None
        ):
            tool = typer.Typer(name=args[0], no_args_is_help=True)
            load_entry_point(point)[0](tool)
            return args[0], typer.main.get_command(tool), args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _notices():
                return super().invoke(ctx)
        except SecureVFLError as error:
            lines = [str(error), *getattr(error, "__notes__", ())]
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever reads stdout has had enough
            lines = [str(StorageError(error.filename or "a file", error))]
        typer.echo("\n".join(lines), err=True)
        raise typer.Exit(2)


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
app.add_typer(certs_commands.certs_app, name="certs")
for command in (
    certs_commands.kit,
    *(parties_commands.align, parties_commands.prepare, parties_commands.join),
    *(parties_commands.predict, parties_commands.relay),
    *(line_command.line, describe_command.describe, correlate_command.correlate, fairness_command.fairness),
    *(
        model_commands.drift,
        model_commands.scorecard,
        model_commands.reasons,
        model_commands.export,
        model_commands.forget,
    ),
    *(serve_commands.serve, serve_commands.score),
    ledger_command.ledger,
):
    app.command()(option_groups.expand_option_groups(command))


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
@option_groups.expand_option_groups
def explain(
    job_file: options.JobFile,
    tables: option_groups.SizedTablesOptions = option_groups.SizedTablesOptions(),
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
    if tables.alone:
        own, others = tables.one_side(job, job_file)
        known = _ledgers(ledger, [own])
        text = consent_sheet.explain(job, [own], others=others, outputs=tables.classes, ledgers=known)
        below = (
            f"\ndigest: {text.digest}   (agree to it with securevfl join ... --accept {text.digest})\n"
            f"{option_groups.sizes_line(job, own)}"
        )
    else:
        parties = _helped(job, tables.read(job_file, job)[0]) if tables.files(job_file) else None
        text = consent_sheet.explain(job, parties, ledgers=_ledgers(ledger, parties))
        below = "" if details else "\nevery message, encryption and counts: --details"
    out.print(sheet(text if details else text.first_screen, sheet_width(out)), soft_wrap=True)
    if below:
        out.print(below, soft_wrap=True)


@app.command()
@option_groups.expand_option_groups
def train(
    job_file: options.JobFile,
    tables: option_groups.TablesOptions = option_groups.TablesOptions(),
    report_json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write job, metrics, history and costs here.")
    ] = None,
    html: options.Html = None,
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
    from securevfl.cli.event_output import events
    from securevfl.cli.live import live, step_of
    from securevfl.cli.show import console, costs_table, figures
    from securevfl.consent.consent_sheet import explain
    from securevfl.consent.settle_job import most_epochs
    from securevfl.runtime.network import Network
    from securevfl.training.json_report import write_report
    from securevfl.training.local_baseline import baseline_metrics
    from securevfl.training.simulate import simulate

    job, new = _load(job_file), option_groups.named_files(predict)
    check_writable(report_json, html, predictions)
    check_writable(save, folder=True)
    parties, missing = tables.read(job_file, job)
    parties = _helped(job, parties)
    network = Network(mbps=mbps, rtt_ms=rtt_ms, message_ms=message_ms)
    with live((), step_of(job)) as on_round, events(False, None):
        run = simulate(job, parties, network=network, on_round=on_round, ledgers=_ledgers_in(ledger, parties))
    if save is not None:
        run.save(save)
    if html is not None:
        lead = next(party for party in parties if party.active)
        run.report(html, alone=baseline_metrics(job, lead), sheet=explain(job, parties).first_screen)
    if report_json is not None:
        write_report(report_json, run, network=network, lacking={name: len(ids) for name, ids in missing.items()})
    out = console()
    out.print(f"{figures(run.metrics, run.positive, run.metric_std_errors)} on the {run.evaluated_on}", soft_wrap=True)
    if not job.epochs:
        why = "as what they tell of columns is accepted" if "columns" in job.accepts else "that the guards let through"
        out.print(f"epochs = {run.job.epochs}: the most, up to {most_epochs(job)}, {why}", soft_wrap=True)
    out.print(costs_table(run.costs))
    if new:
        from securevfl.cli.prediction_output import predict_files

        predict_files(run, new, predictions, id_columns=tables.id_columns(new))


@app.command()
@option_groups.expand_option_groups
def compare(
    job_file: options.JobFile,
    tables: option_groups.TablesOptions = option_groups.TablesOptions(),
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who you are, where the others are on machines of their own.")
    ] = None,
    peers: options.PeersByJob = None,
    html: options.Html = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Ask DIR/NAME.ledger of each party first, for all models, and count there; with --party the file.",
        ),
    ] = None,
    accept: options.Digest = None,
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
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
    from securevfl.cli.show import console

    check_writable(html)
    found: Comparison | None
    if party is None:
        from securevfl.training.comparison import compare as run_all

        job = _load(job_file)
        parties, _ = tables.read(job_file)
        with console(err=True).status("comparing") as status:
            ledgers = _ledgers_in(ledger, parties)
            found = run_all(job, parties, ledgers=ledgers, on_model=lambda what: status.update(f"training: {what}"))
        console().print(str(found))
    else:
        data = tables.data or [""]
        if len(data) != 1 or not data[0] or "=" in data[0]:
            raise ConfigError(f"--data: the file of {party}'s own table was expected, and no other; name it")
        own = option_groups.TableOptions(party, Path(data[0]), tables.id_columns([party])[party], tables.label_column)
        found = parties_commands.compare_at(job_file, own, peers, option_groups.ConsentOptions(ledger, accept), meeting)
    if html is not None and found is not None:
        found.report(html)


def _helped(job: Job, parties: list[Party]) -> list[Party]:
    """Return the parties, and where the job can't do without one those that have no table, as FDML's server."""
    from securevfl.data.party import Helper
    from securevfl.errors import PartiesError
    from securevfl.families.declarations import run_roles

    try:
        run_roles(job.family, job, parties)
    except PartiesError:
        names = {party.name for party in parties}
        return parties + [Helper(name, role) for name, role in job.family.example_helpers if name not in names]
    return parties


def _ledgers_in(folder: Path | None, parties: list[Party]) -> dict[str, DisclosureLedger] | None:
    """Return the ledger of each party in a folder, if one is named."""
    from securevfl.disclosure.ledger import DisclosureLedger

    if folder is None:
        return None
    return {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}


def _ledgers(files: list[Path] | None, parties: list[Party] | None) -> dict[str, DisclosureLedger]:
    """Find the ledgers in these files, and those of other parties that are where they are by default."""
    from securevfl.disclosure.ledger import DisclosureLedger, default_ledger

    usual = [DisclosureLedger(default_ledger(party.name), party.name) for party in parties or ()]
    given = [DisclosureLedger.find(path) for path in files or ()]
    return {each.party: each for each in [*(each for each in usual if each.path.exists()), *given]}


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
@option_groups.expand_option_groups
def audit(
    job_file: options.JobFile,
    tables: option_groups.SizedTablesOptions = option_groups.SizedTablesOptions(),
    html: options.Html = None,
) -> None:
    """Check, simulate and attack a job on its tables; exit code 1 if anything exceeds what is declared and accepted.

    A party alone gives its own table, and --size for every other party: in their place stand columns of noise, and
    labels that follow all columns a little.
    """
    from securevfl.audit import noise_tables, page, report
    from securevfl.cli.show import console

    job, noise_parties = _load(job_file), list[str]()
    check_writable(html)
    errors = console(err=True)
    if tables.alone:
        own, others = tables.one_side(job, job_file)
        parties, noise_parties = noise_tables.with_noise_parties(job, own, others, tables.classes or 2), list(others)
        errors.print(f"audit: columns of noise and made-up labels stand in the place of {', '.join(noise_parties)}")
    else:
        parties = _helped(job, tables.read(job_file)[0])
    found = report.run_audit(
        job, parties, on_step=lambda step: errors.print(f"audit: {step}"), noise_parties=noise_parties
    )
    console().print(page.text(found), soft_wrap=True)
    if html is not None:
        write_atomic(html, page.html(found).encode())
    raise typer.Exit(found.exit_code)


def main() -> None:
    """Entry point of the command."""
    use_one_heap()
    app()


if __name__ == "__main__":
    main()
