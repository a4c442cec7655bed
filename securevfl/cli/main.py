"""The command `securevfl`. Commands import their modules when they run, so that --help is fast.

Expected errors are printed on stderr with their code and end the command with exit code 2. The options of a command
that are fields of a dataclass are in `securevfl.cli.option_groups`.

Terms: a *consent sheet* lists everything that a job discloses about a party's table. A *leak* is a disclosure that a
job must accept by name. A party's *ledger* records what its jobs have disclosed, and limits it. *Held-out* rows are not
trained on; metrics are computed on them.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from securevfl.base.extensions import available_entry_points, import_entry_point, is_own
from securevfl.base.files import check_writable, write_atomic
from securevfl.base.machine import use_one_heap
from securevfl.base.version import __version__
from securevfl.cli import (
    certs_commands,
    forget_command,
    ledger_command,
    line_command,
    option_groups,
    party_commands,
    serve_commands,
)
from securevfl.cli import party_options as options
from securevfl.cli.bench import bench
from securevfl.cli.command_groups import group_of, in_order, line_of
from securevfl.cli.database_tables import fetch
from securevfl.cli.job_files import load_job, with_helpers, with_modules
from securevfl.cli.json_output import write_results
from securevfl.cli.unused_options import names_of, refuse_all_except, refuse_unused
from securevfl.data.query_rows import file_of_table
from securevfl.errors import ConfigError, DataNotice, SecureVFLError, StorageError

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.training.comparison import Comparison
    from securevfl.training.cross_validation import CrossValidation
    from securevfl.training.search_sheet import SearchForecast
    from securevfl.training.tuning import Tuning


@contextmanager
def _notices() -> Iterator[None]:
    """Print each notice (a warning about a table) once on stderr, even if a command trains several models."""
    show_other, shown = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *args: Any, **keys: Any) -> None:
        if not issubclass(category, DataNotice):
            show_other(message, category, *args, **keys)
        elif str(message) not in shown:
            typer.echo(str(message), err=True)
            shown.add(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataNotice)
        warnings.showwarning = show
        yield


TOOL_ENTRY_POINTS = "securevfl.tools"  # the group of entry points by which other packages add commands


class Commands(TyperGroup):
    """Group of commands that prints expected errors without a traceback, and lists commands in groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands of this package by group, then those of other packages."""
        names = super().list_commands(ctx)
        return in_order([*names, *(name for name in available_entry_points(TOOL_ENTRY_POINTS) if name not in names)])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, with the group and the help line under which `--help` lists it.

        A command of another package is not loaded for this: only its name and its package are read.
        """
        command = self._find_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = group_of(cmd_name)
            command.short_help = line_of(cmd_name) or command.short_help
        return command

    def _find_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None or (point := available_entry_points(TOOL_ENTRY_POINTS).get(cmd_name)) is None:
            return command
        if is_own(point):
            return _load_command(cmd_name, point)
        return TyperCommand(cmd_name, help=f"A command of {point.dist.name if point.dist else 'another package'}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load a command of another package when it is used."""
        if (
            args
            and super().get_command(ctx, args[0]) is None
            and (point := available_entry_points(TOOL_ENTRY_POINTS).get(args[0])) is not None
        ):
            return args[0], _load_command(args[0], point), args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and print expected errors with their code."""
        try:
            with _notices():
                return super().invoke(ctx)
        except SecureVFLError as error:
            lines = [_with_code(error), *getattr(error, "__notes__", ())]
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # a pipe is closed because the program that reads stdout, such as `head`, has ended
            lines = [_with_code(StorageError(error.filename or "a file", error))]
        typer.echo("\n".join(lines), err=True)
        raise typer.Exit(2)


def _load_command(name: str, point: EntryPoint) -> Any:
    """Load the command, or the group of commands, that an entry point registers."""
    tool = typer.Typer(name=name, no_args_is_help=True)
    import_entry_point(point)(tool)
    return typer.main.get_command(tool)


def _with_code(error: SecureVFLError) -> str:
    separator = "\n" if error.ends_with_command else " "
    return f"{error}{separator}[{error.code}]"


app = typer.Typer(
    name="securevfl",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train one model on the columns of several organisations, without revealing the columns to each other.",
    epilog="Start with: securevfl demo",
)

app.add_typer(bench, name="bench")
app.add_typer(certs_commands.certs_app, name="certs")
for command in (
    certs_commands.kit,
    *(party_commands.align, party_commands.prepare, party_commands.join),
    *(party_commands.predict, party_commands.relay),
    *(line_command.line, forget_command.forget),
    *(serve_commands.serve, serve_commands.score),
    ledger_command.ledger,
    fetch,
):
    app.command()(option_groups.expand_option_groups(command))


def _version(requested: bool) -> None:
    if requested:
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
    """Train a logistic regression of two parties on secret shares, encrypted and in plain text, and compare."""
    from securevfl.cli.demo import demo as run_demo
    from securevfl.cli.show import console

    run_demo(console())


@app.command()
@option_groups.expand_option_groups
def explain(
    context: typer.Context,
    job_file: options.JobFile,
    tables: option_groups.SizedTablesOptions = option_groups.SizedTablesOptions(),
    ledger: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A party's disclosure ledger, if it is not in your data folder. Repeatable."),
    ] = None,
    json: options.Json = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=options.output_file, help="Write the sheet as a page to this file."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also list every message, the encryption and the resources.")
    ] = False,
    year: Annotated[
        bool,
        typer.Option(
            "--year",
            help="Add up what twelve monthly trainings, one comparison, one search and --scores scores disclose, and "
            "state which of them your limits would refuse.",
        ),
    ] = False,
    scores: Annotated[int, typer.Option(min=0, help="With --year: number of new rows that are scored.")] = 0,
    searched: Annotated[int, typer.Option(min=0, help="With --year: number of trainings of the search.")] = 8,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUES",
            help="State what a search over these values would disclose, as in l2=0.01,0.1,1; see `compare --grid`.",
        ),
    ] = None,
) -> None:
    """Explain what each party would learn, before anything runs.

    With --data the sheet contains the figures of each table and names every leak that would be refused. Earlier
    disclosures count, as far as the disclosure ledgers on this computer contain them. A single party gives its table,
    and --size for every other party. The digest below that sheet is the argument of `securevfl join --accept`.

    With --grid the sheet is that of a search, `securevfl compare --grid`: it counts the disclosures of all its
    trainings.
    """
    from securevfl.cli.show import console, styled_sheet
    from securevfl.consent import consent_sheet

    check_writable(json, html)
    if year and grid:
        raise ConfigError(
            "--year and --grid cannot be combined",
            "leave --grid out; with --year, --searched is the number of trainings of a search",
            code="SVFL-COMMAND-USAGE",
        )
    if year:
        refuse_unused(context, ("html", "details"), "with --year", "use --json")
    else:
        refuse_unused(context, ("scores", "searched"), "without --year", "add --year")
    if not tables.alone:
        refuse_unused(context, ("classes",), "if the tables of all parties are given", "give your table only")
    job, out = load_job(job_file), console()
    if year:
        from securevfl.training.year_forecast import YearPlan, forecast_year

        known: dict[str, Any] = {}
        if tables.alone:
            party, others = tables.one_side(job, job_file)
            here, known = [party], {"others": others, "outputs": tables.classes}
        else:
            here = with_helpers(job, tables.read(job_file, job)[0])
        plan = YearPlan(searched=searched, scores=scores)
        forecast = str(forecast_year(job, here, ledgers=_ledgers(ledger, here), plan=plan, **known))
        write_results(json, "explain", lambda: {"job": job.to_dict(), "year": forecast})
        out.print(forecast, soft_wrap=True)
        return
    refusals: tuple[str, ...] = ()

    def search_forecast(here: Sequence[Party], known: Mapping[str, DisclosureLedger], **sizes: Any) -> SearchForecast:
        from securevfl.training.search_sheet import explain_search
        from securevfl.training.tuning_grid import read_grid

        return explain_search(job, read_grid(grid or ()), here, ledgers=known, **sizes)

    if tables.alone:
        party, others = tables.one_side(job, job_file)
        ledgers = _ledgers(ledger, [party])
        if grid:
            sheet, refusals = search_forecast([party], ledgers, others=others, outputs=tables.classes)
        else:
            sheet = consent_sheet.explain(job, [party], others=others, outputs=tables.classes, ledgers=ledgers)
        agreeing = "compare ... --grid" if grid else "join"
        below = (
            f"digest: {sheet.digest}   (to agree: securevfl {agreeing} ... --accept {sheet.digest})\n"
            f"{option_groups.sizes_line(job, party)}"
        )
    else:
        parties = with_helpers(job, tables.read(job_file, job)[0]) if tables.files(job_file) else None
        if grid:
            sheet, refusals = search_forecast(parties or (), _ledgers(ledger, parties))
        else:
            sheet = consent_sheet.explain(job, parties, ledgers=_ledgers(ledger, parties))
        below = "" if details else "--details lists every message, the encryption and the resources"
    summary: dict[str, Any] = {
        "digest": sheet.digest,
        "job": job.to_dict(),
        "sheet": str(sheet),
        "first_screen": sheet.first_screen,
    }
    summary["learned"] = sheet.learned
    if grid:
        summary["refusals"] = list(refusals)
    write_results(json, "explain", lambda: summary)
    if html is not None:
        write_atomic(html, sheet.page().encode())
    out.print(styled_sheet(str(sheet) if details else sheet.first_screen), soft_wrap=True)
    for reason in refusals:
        out.print(f"would be refused: {reason}", soft_wrap=True, markup=False, highlight=False)
    out.print(f"\n{sheet.footer}", soft_wrap=True)
    if below:
        out.print(below, soft_wrap=True)


@app.command()
@option_groups.expand_option_groups
def train(
    context: typer.Context,
    job_file: options.JobFile,
    tables: option_groups.TablesOptions = option_groups.TablesOptions(),
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each party's part of the model to DIR/NAME.json.")
    ] = None,
    replace: options.Replace = False,
    predict: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="Afterwards predict these new rows, joined by id. Repeat for each party."
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=options.output_file, help="Write the predictions to this file instead of stdout."
        ),
    ] = None,
    mbps: Annotated[float, typer.Option(min=0.001, help="Bandwidth between the parties in Mbit/s.")] = 300.0,
    rtt_ms: Annotated[float, typer.Option(min=0.0, help="Round-trip time between the parties in milliseconds.")] = 20.0,
    message_ms: Annotated[
        float, typer.Option(min=0.0, help="Time that computers add to a message, in ms; measured by `securevfl line`.")
    ] = 0.4,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Record in DIR/NAME.ledger what each party's data discloses. By default nothing is recorded.",
        ),
    ] = None,
) -> None:
    """Train a job with all parties on this computer and print its metrics and costs.

    Tables are joined on the id column; the number of ids that a party lacks is printed on stderr. Large Parquet files
    are copied to a file with fixed-size rows next to them until the end, so that they need not fit in memory. Times are
    simulated: they are those of one computer for each party on the given network.

    Example: securevfl train job.toml --data bank=bank.csv --data shop=shop.csv.gz --html run.html
    """
    from securevfl.cli.event_output import events
    from securevfl.cli.live import live, step_of
    from securevfl.cli.run_output import print_costs, print_metrics
    from securevfl.cli.show import console
    from securevfl.consent.consent_sheet import explain
    from securevfl.consent.settle_job import most_epochs
    from securevfl.runtime.network import Network
    from securevfl.training.json_report import report as training_report
    from securevfl.training.local_baseline import baseline_figures
    from securevfl.training.model_part import check_unused
    from securevfl.training.simulate import simulate

    if predict is None:
        refuse_unused(context, ("predictions",), "without --predict", "name the new rows with --predict")
    if save is None:
        refuse_unused(context, ("replace",), "without --save", "add --save")
    job, new_tables = load_job(job_file), option_groups.named_files(predict)
    report.check()
    check_writable(predictions)
    check_writable(save, folder=True)
    if save is not None and not replace:
        for name in tables.files(job_file):
            check_unused(save / f"{name}.json")
    parties, missing = tables.read(job_file, job)
    parties = with_modules(job, job_file, with_helpers(job, parties))
    network = Network(mbps=mbps, rtt_ms=rtt_ms, message_ms=message_ms)
    with live((), step_of(job)) as on_round, events(False, None):
        run = simulate(job, parties, network=network, on_round=on_round, ledgers=_ledgers_in(ledger, parties))
    if save is not None:
        run.save(save)
    alone = None
    if report.page is not None or report.report_json is not None:
        alone = baseline_figures(run.job, next(party for party in parties if party.active))
    lacking = {name: len(ids) for name, ids in missing.items()}
    write_results(
        report.report_json,
        "train",
        lambda: training_report(run, network=network, lacking=lacking, alone=None if alone is None else alone.metrics),
    )
    if report.page is not None:
        run.report(report.page, alone=alone, sheet=explain(job, parties).first_screen)
    out = console()
    print_metrics(out, run.active, alone)
    if not job.epochs:
        accepted = "columns" in job.accepts
        reason = "because the job accepts the leak of columns" if accepted else "that the leak checks allow"
        maximum = f"the maximum, up to {most_epochs(job)},"
        out.print(f"epochs = {run.job.epochs}: {maximum} {reason}")
    out.print()
    print_costs(out, run.costs)
    if new_tables:
        from securevfl.cli.prediction_output import predict_files

        predict_files(run, new_tables, predictions, options=tables.options(job_file, new_tables))


@app.command()
@option_groups.expand_option_groups
def compare(
    context: typer.Context,
    job_file: options.JobFile,
    tables: option_groups.TablesOptions = option_groups.TablesOptions(),
    party: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Your party's name, if the other parties are on their own machines."),
    ] = None,
    peers: options.PeersByJob = None,
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with a ledger DIR/NAME.ledger of each party, which counts all models; with --party a file.",
        ),
    ] = None,
    accept: options.Digest = None,
    interactions: Annotated[
        bool,
        typer.Option(
            "--interactions",
            help="Compare trees with interactions between two parties' columns (pairs) as well. All parties add it.",
        ),
    ] = False,
    search: option_groups.SearchOptions = option_groups.SearchOptions(),
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Measure how much the other parties' columns improve models of the party with labels; with --grid, choose options.

    Compares logistic regression, logistic regression on bins of each column, and trees. Each is trained on the labelled
    party's columns, for which nothing is sent, and then on all columns with secret shares. Each model is measured once,
    on the same held-out rows, and no model is stored. The job defines these rows and the preparation of columns.

    All tables are on this computer, or with --party every party runs this on its machine. Each party then agrees once
    to all trainings, and its ledger records all their measurements before the first one.

    Example: securevfl compare job.toml --data bank=bank.csv --data shop=shop.csv.gz

    Example: securevfl compare job.toml --party shop --data shop.csv

    With --interactions, trees are trained once more with pairs, which are products of two parties' columns. The result
    states how much the AUC changes by them, and whether this may be chance. It is one more measurement.

    Example: securevfl compare job.toml --data bank=bank.csv --data shop=shop.csv --interactions

    With --grid, the models are those of the job with all combinations of the named values. Each discloses one number to
    the party with labels: the sum of the losses of the same held-out rows. The best model is trained again, measured
    with all metrics and stored.

    Example: securevfl compare job.toml --party shop --data shop.csv --grid l2=0.01,0.1,1

    With --grid and --alone, the party with labels cross-validates on its columns, and nothing is sent.

    Example: securevfl compare job.toml --data bank=bank.csv --grid l2=0.01,0.1 --grid bins=5,10 --alone
    """
    from securevfl.cli.show import console

    _check_compare_options(context, search, party)
    report.check()
    comparison: Comparison | CrossValidation | Tuning | None
    if search.alone:
        comparison = search.cross_validation(job_file, tables)
        console().print(str(comparison))
        report.write("tune-alone", comparison.plain, comparison.page)
        return
    if party is None:
        from securevfl.training.comparison import compare as compare_models

        job = load_job(job_file)
        parties, _ = tables.read(job_file, drop=job.prepare.drop)
        with console(err=True).status("comparing") as status:
            ledgers = _ledgers_in(ledger, parties)
            on_model = lambda name: status.update(f"training: {name}")  # noqa: E731
            if search.grid:
                comparison = search.tuning(job, parties, ledgers, on_model)
            else:
                comparison = compare_models(job, parties, ledgers=ledgers, on_model=on_model, interactions=interactions)
        console().print(str(comparison))
    else:
        data = tables.data or [""]
        if len(data) != 1 or not data[0] or "=" in data[0]:
            raise ConfigError(
                f"--data must name exactly one file, the table of {party}",
                "write it as in --data shop.csv",
                code="SVFL-COMMAND-USAGE",
                party=party,
            )
        tables.check_names([party])
        columns = dict(option_groups.pair("--columns", item, "NAME=FILE.TOML", "") for item in tables.columns or ())
        table = option_groups.TableOptions(
            party,
            file_of_table(data[0]),
            tables.id_columns([party])[party],
            tables.label_column,
            Path(columns[party]) if party in columns else None,
            tables.repeated_ids(job_file, [party])[party],
        )
        consent = option_groups.ConsentOptions(ledger, accept)
        if search.grid:
            comparison = party_commands.tune_at(job_file, table, peers, consent, session, search)
        else:
            comparison = party_commands.compare_at(job_file, table, peers, consent, session, interactions=interactions)
    if comparison is not None:
        report.write("tune" if search.grid else "compare", comparison.plain, comparison.page)


COMPARE_TABLES = {"job_file", *names_of(option_groups.TablesOptions, option_groups.ReportOptions)}
COMPARE_SESSION = {"party", "peers", "ledger", "accept", *names_of(option_groups.SessionOptions)} - {"query"}


def _check_compare_options(context: typer.Context, search: option_groups.SearchOptions, party: str | None) -> None:
    """Raise ConfigError for options that `compare` does not use in this mode."""
    search.check(party)
    if search.alone:
        refuse_all_except(context, COMPARE_TABLES | {"grid", "alone", "folds", "scoring"}, "with --alone")
        return
    refuse_unused(context, ("folds", "scoring"), "without --alone", "add --alone to cross-validate")
    if search.grid:
        refuse_unused(context, ("interactions",), "with --grid", "choose `pairs` in the job's model")
    grid = {"grid"} if search.grid else set()
    if party is None:
        here = COMPARE_TABLES | {"ledger", "interactions"} | grid
        refuse_all_except(context, here, "if all tables are on this computer", "name your party with --party")
        return
    stored = {"save", "checkpoints"} if search.grid else set()
    refuse_unused(context, {"save", "checkpoints"} - stored, "without --grid", "add --grid, which stores a model")
    refuse_unused(context, ("query",), "with --party", "read the table with `securevfl fetch` before it is aligned")
    used = COMPARE_TABLES | COMPARE_SESSION | {"interactions"} | grid | stored
    refuse_all_except(context, used, "with --party")


def _ledgers_in(folder: Path | None, parties: list[Party]) -> dict[str, DisclosureLedger] | None:
    """Return the ledger of each party in a folder, if one is named."""
    from securevfl.disclosure.ledger import DisclosureLedger

    if folder is None:
        return None
    return {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}


def _ledgers(files: list[Path] | None, parties: list[Party] | None) -> dict[str, DisclosureLedger]:
    """Return the ledgers in these files, and the default ledgers of the other parties."""
    from securevfl.disclosure.ledger import DisclosureLedger, default_ledger

    defaults = [DisclosureLedger(default_ledger(party.name), party.name) for party in parties or ()]
    named = [DisclosureLedger.find(path) for path in files or ()]
    existing = [ledger for ledger in defaults if ledger.path.exists()]
    return {ledger.party: ledger for ledger in [*existing, *named]}


def main() -> None:
    """Run the command line."""
    use_one_heap()
    app()


if __name__ == "__main__":
    main()
