"""Commands of one party among several organisations: align, prepare, join, predict, relay.

Terms: a party's *part of the model* is the file with the weights of its columns. Its *consent sheet* lists everything
that a job discloses about its table, and its *ledger* records what was disclosed. The *file of peers* lists the parties
and their addresses. A *hub* forwards encrypted packets between parties that cannot connect directly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.disk_space import check_disks
from securevfl.base.extensions import require_tool
from securevfl.base.file_locks import shared_locks
from securevfl.base.files import check_writable
from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options
from securevfl.cli.json_output import write_results
from securevfl.cli.reason_code_options import Codes, Reasons, given_codes
from securevfl.cli.unused_options import names_of, refuse_unused
from securevfl.data.query_rows import file_of_table
from securevfl.errors import ConfigError, PartiesError

if TYPE_CHECKING:
    from securevfl.consent.consent_sheet import ConsentSheet
    from securevfl.data.party import Party
    from securevfl.job import Job
    from securevfl.training.comparison import Comparison
    from securevfl.training.tuning import Tuning


def align(
    party: options.Name,
    data: options.Data,
    peers: options.PeersFile = Path("peers.toml"),
    row_ids: option_groups.IdOptions = option_groups.IdOptions(),
    ledger: options.Ledger = None,
    json: options.Json = None,
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Find the ids that all parties have, without revealing other ids, and write the common row order next to the data.

    Every party runs this. After an interruption, the same command resumes. Your ledger counts how many of your ids the
    other parties can test, and refuses beyond its limit of ids.
    """
    from securevfl.data.composite_ids import id_spelling
    from securevfl.data.readers import id_rule_version, read_unique_ids
    from securevfl.data.row_order import rows_path, write_rows
    from securevfl.display.progress import progress
    from securevfl.organisations.align import align_with
    from securevfl.organisations.peer_settings import check_among

    settings, journal = session.settings(peers), Path(f"{data}.align")
    check_among(settings.peers, party)
    ids, unique = read_unique_ids(data, row_ids.options)
    rule = id_rule_version(data, row_ids.id_column)
    check_writable(rows_path(data), json)
    with (
        shared_locks(data),
        signals.exit_on_signal(lambda: f"the progress is stored in {journal}"),
        session.events(party, peers),
        progress("aligning") as on_progress,
    ):
        rows = align_with(
            party,
            ids,
            settings,
            ledger=ledger,
            journal=journal,
            rule=rule,
            on_progress=on_progress,
            on_rows=lambda rows: write_rows(data, rows if unique is None else unique.rows[rows]),
        )
    count = len(rows)
    write_results(json, "align", lambda: {"party": party, "rows": len(ids), "common_rows": count})
    typer.echo(f"{count:,} of {len(ids):,} rows are common to all parties; their order is in {data}.rows.npy")
    if not count:
        typer.echo(
            f"Check that all parties write ids in the same way. The pattern of your ids, with 9 for a digit, is "
            f"{id_spelling(ids)}. "
            "If all parties write a comma after the column, as in `--id COLUMN,`, ids are compared without capitals, "
            "blanks, punctuation and accents. Signs, decimal points and leading zeros of numbers still count.",
            err=True,
        )
    elif (job_file := Path(peers).parent / "job.toml").is_file():
        typer.echo(f"Next, at every party:\n    securevfl join {job_file} --party {party} --data {data}")


def prepare(
    job_file: options.SharedJob,
    table: option_groups.TableOptions,
    peers: options.PeersByJob = None,
    preprocessing: options.PreprocessingDir = None,
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Compute random numbers of a training on secret shares ahead, so that join takes minutes. Every party runs this.

    This is called the offline phase. The random numbers (masks) hide the tables, so protect their folder like the
    table.
    """
    from securevfl.display.progress import progress
    from securevfl.job import Job
    from securevfl.organisations.prepare import prepare as run_offline_phase

    job, party_name, peers_file = Job.load(job_file), table.party, _peers_file(job_file, peers)
    folder = _preprocessing_folder(table.data, preprocessing)
    check_writable(folder, folder=True)
    party = table.aligned(job, job_file)
    with shared_locks(table.data), session.events(party_name, peers_file), progress("preparing") as on_round:
        run_offline_phase(job, party, session.settings(peers_file), preprocessing=folder, on_round=on_round)
    typer.echo(f"the precomputed random numbers of {party_name} are in {folder}")


def _peers_file(job_file: Path, named: Path | None) -> Path:
    """Return the named file of peers, or the one next to the job."""
    return job_file.parent / "peers.toml" if named is None else named


def _preprocessing_folder(data: Path, named: Path | None) -> Path:
    """Return the named folder of precomputed random numbers, or the one next to the table."""
    return Path(f"{data}.ahead") if named is None else named


OptionalData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        parser=file_of_table,
        metavar="FILE",
        help="Your table: .csv, .csv.gz, .parquet, .arrow, .npz or a folder. A party without a table, such as the "
        "server of an FDML job, leaves it out.",
    ),
]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Number of rounds between two checkpoints.")]
Retrain = Annotated[
    bool,
    typer.Option(
        "--retrain",
        help="Train again although this job has finished on this table; the ledger counts the new training too.",
    ),
]


def join(
    context: typer.Context,
    job_file: options.SharedJob,
    party: options.Name,
    data: OptionalData = None,
    peers: options.PeersByJob = None,
    id_column: options.IdColumn = "id",
    label_column: options.LabelColumn = "y",
    columns: options.ColumnTypes = None,
    duplicates: options.JobRepeatedIds = None,
    save: options.ModelFile = None,
    checkpoints: options.CheckpointDir = None,
    checkpoint_every: CheckpointEvery = 10,
    preprocessing: options.PreprocessingDir = None,
    consent: option_groups.ConsentOptions = option_groups.ConsentOptions(),
    retrain: Retrain = False,
    replace: options.Replace = False,
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Train with the other parties. Every party runs this, and runs it again after an interruption.

    Once all parties are connected, your consent sheet is shown and you are asked to agree. Without a terminal, --accept
    names the sheet by its digest. You are not asked again about the same sheet. A training that has finished does not
    start again without --retrain. A model file is never overwritten: with --replace or --retrain the old file is
    renamed to NAME.<digest>.json when the new model is complete.

    Rows are used in the order that `securevfl align` wrote next to the data. A large Parquet file is copied to a file
    with fixed-size rows next to it until the training has finished, so that it need not fit in memory.
    """
    from securevfl.cli.consent_prompt import check_agreed
    from securevfl.cli.live import live, step_of
    from securevfl.cli.run_output import print_costs, print_metrics
    from securevfl.cli.show import console
    from securevfl.consent.agreed_sheets import AgreedSheets
    from securevfl.data.load import delete_table_copy
    from securevfl.job import Job
    from securevfl.organisations.join import join as join_training
    from securevfl.training.checkpoint import FINISHED_ROUND, Checkpoints
    from securevfl.training.json_report import part_report
    from securevfl.training.local_baseline import baseline_figures
    from securevfl.training.model_part import PartStatus
    from securevfl.training.run_costs import Costs
    from securevfl.training.run_page import write_report
    from securevfl.training.run_setup import run_key
    from securevfl.transport.peers import Peers

    if data is None:
        refuse_unused(context, ("id_column", "label_column", "columns", "duplicates"), "without --data", "add --data")
    ledger, agree = consent.asking(party, f"securevfl join {job_file}")
    job, peers_file = Job.load(job_file), _peers_file(job_file, peers)
    table = job_file.parent / party if data is None else data
    save = table.with_name(f"{party}.model.json") if save is None else save
    folder = Path(f"{table}.states") if checkpoints is None else checkpoints
    report.check()
    check_writable(save)
    check_writable(folder, _preprocessing_folder(table, preprocessing), folder=True)
    states = Checkpoints(folder, party, every=checkpoint_every)
    if data is None:
        member = _helper(job, party)
    else:
        read_from = option_groups.TableOptions(party, data, id_column, label_column, columns, duplicates)
        member = read_from.aligned(job, job_file)
    member.model = job.model.named_module(party, job_file.parent)
    key = run_key(job, member)
    sheets: list[ConsentSheet] = []

    def describe_stored() -> str:
        rounds = [number for number in states.rounds(key) if number != FINISHED_ROUND]
        return f"the checkpoint after {rounds[-1]} rounds is in {folder}" if rounds else ""

    def ask(sheet: ConsentSheet) -> None:
        sheets[:] = [sheet]
        agree(sheet)

    others = [name for name in Peers.load(peers_file).parties if name != party]
    line = live(others, step_of(job))
    with shared_locks(table, save), signals.exit_on_signal(describe_stored), line as on_round, session.events():
        part = join_training(
            job,
            member,
            peers_file,
            **session.keys,
            checkpoints=states,
            save=save,
            ledger=ledger,
            preprocessing=_preprocessing_folder(table, preprocessing),
            retrain=retrain,
            replace=replace,
            consent=ask,
            on_round=on_round,
        )
    alone = None
    if report.report_json is not None or report.page is not None:
        alone = baseline_figures(job, member)
        write_results(
            report.report_json, "join", lambda: part_report(part, alone=None if alone is None else alone.metrics)
        )
        if report.page is not None:
            sheet = "".join(sheet.first_screen for sheet in sheets)
            write_report(report.page, part, alone=alone, sheet=sheet)
    if data is not None:
        delete_table_copy(member, data)
    out = console()
    if part.status is not PartStatus.NEW:
        out.print(
            f"Nothing was trained, because job and table are the same as before. This model is {part.status}. Use "
            "--retrain to train again."
        )
    if part.metrics:
        print_metrics(out, part, alone)
        out.print()
    if part.status is PartStatus.NEW:
        print_costs(out, Costs.of(job, {part.name: part}))
        out.print()
    typer.echo(f"{part.name}'s part of the model is in {save}")
    if part.status is PartStatus.NEW and data is not None:
        typer.echo("Next, for new rows, at every party:")
        typer.echo(f"    securevfl predict {save} --data FILE --peers {peers_file}")
    if part.status is not PartStatus.NEW:
        check_agreed(AgreedSheets(ledger), consent.accept)
    if part.status is PartStatus.UNCONFIRMED:  # the part was stored, but no other party could be reached to confirm it
        raise typer.Exit(2)


def compare_at(
    job_file: Path,
    table: option_groups.TableOptions,
    peers: Path | None,
    consent: option_groups.ConsentOptions,
    session: option_groups.SessionOptions,
    *,
    interactions: bool = False,
) -> Comparison | None:
    """Compare models with the other parties on their own machines, as the command `compare --party` does.

    Args:
        job_file: the job file.
        table: options for this party's table.
        peers: the file of peers; by default peers.toml next to the job.
        consent: options for consent and ledger.
        session: options for reaching the peers.
        interactions: whether trees with pairs are compared as well.

    Returns:
        The comparison at the party with labels, None at the others.
    """
    from securevfl.cli.live import live, step_of
    from securevfl.cli.show import console
    from securevfl.job import Job
    from securevfl.organisations.compare import compare_with

    command = f"securevfl compare {job_file} --party {table.party}" + " --interactions" * interactions
    ledger, agree = consent.asking(table.party, command)
    job, settings = Job.load(job_file), session.settings(_peers_file(job_file, peers))
    party, errors = table.aligned(job, job_file), console(err=True)
    line = live([name for name in settings.peers.parties if name != table.party], step_of(job))
    with shared_locks(table.data), signals.exit_on_signal(), line as on_round, session.events():
        comparison = compare_with(
            job,
            party,
            settings,
            ledger=ledger,
            consent=agree,
            on_model=lambda name: errors.print(f"training: {name}", soft_wrap=True),
            on_round=on_round,
            interactions=interactions,
        )
    if comparison is None:
        typer.echo(f"the models were compared; only {settings.peers.active} learns the result, and no model is stored")
    else:
        typer.echo(str(comparison))
    return comparison


def tune_at(
    job_file: Path,
    table: option_groups.TableOptions,
    peers: Path | None,
    consent: option_groups.ConsentOptions,
    session: option_groups.SessionOptions,
    search: option_groups.SearchOptions,
) -> Tuning:
    """Search with the other parties on their own machines, as the command `compare --grid --party` does.

    Args:
        job_file: the job file.
        table: options for this party's table.
        peers: the file of peers; by default peers.toml next to the job.
        consent: options for consent and ledger.
        session: options for reaching the peers.
        search: the grid, and the files of the search.

    Returns:
        The search; the losses are None at parties without labels.
    """
    from securevfl.cli.live import live, step_of
    from securevfl.cli.show import console
    from securevfl.job import Job
    from securevfl.organisations.tune import SearchFiles, tune_with
    from securevfl.training.tuning_grid import read_grid

    command = f"securevfl compare {job_file} --party {table.party} --data {table.data}"
    ledger, agree = consent.asking(table.party, " ".join([command, *(f"--grid {item}" for item in search.grid or ())]))
    job, settings = Job.load(job_file), session.settings(_peers_file(job_file, peers))
    save = table.data.with_name(f"{table.party}.model.json") if search.save is None else search.save
    folder = Path(f"{table.data}.search") if search.checkpoints is None else search.checkpoints
    check_writable(save)
    check_writable(folder, folder=True)
    party, errors = table.aligned(job, job_file), console(err=True)
    line = live([name for name in settings.peers.parties if name != table.party], step_of(job))
    stored = signals.exit_on_signal(lambda: f"finished alternatives are in {folder}")
    with shared_locks(table.data, save), stored, line as on_round, session.events():
        tuning = tune_with(
            job,
            read_grid(search.grid or ()),
            party,
            settings,
            files=SearchFiles(ledger, folder, save),
            consent=agree,
            on_model=lambda name: errors.print(f"training: {name}", soft_wrap=True),
            on_round=on_round,
        )
    typer.echo(str(tuning))
    typer.echo(f"{table.party}'s part of the model is in {save}")
    return tuning


def _helper(job: Job, party: str) -> Party:
    """Return a party without a table, or raise ConfigError if the job's protocol family has no role for one."""
    from securevfl.data.party import Helper

    if not job.family.example_helpers:
        raise ConfigError(
            f"{party} has no table, and {job.family.name} has no role for a party without one",
            "give --data",
            code="SVFL-COMMAND-USAGE",
            party=party,
        )
    return Helper(party, job.family.example_helpers[0][1])


def predict(
    context: typer.Context,
    model: options.Model,
    data: OptionalData = None,
    peers: options.PeersFile = Path("peers.toml"),
    row_ids: option_groups.IdOptions = option_groups.IdOptions(),
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=options.output_file,
            help="CSV file for predictions, at the requesting party; by default stdout.",
        ),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            metavar="POINTS:ODDS:DOUBLE",
            help="Add a column of scorecard points to the scores of a logistic model: POINTS at odds of ODDS to 1, and "
            "DOUBLE more points double the odds, as in 600:50:20.",
        ),
    ] = None,
    reasons: Reasons = None,
    codes: Codes = None,
    unscored: options.Unscored = None,
    ledger: options.Ledger = None,
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Predict new rows with the other parties. Every party runs this with its part of the model and its table.

    The party with labels, or the party that the job names, receives id, prediction and probability (of the positive
    class, or one column per class). With --reasons and --codes it also learns which of your columns raise each row's
    score most, under names that you choose. The parties' ledgers count these disclosures.
    """
    from securevfl.cli.prediction_output import write_predictions
    from securevfl.display.progress import progress
    from securevfl.organisations.preconditions import PREDICTION_ROW_BYTES
    from securevfl.organisations.predict import predict_rows
    from securevfl.organisations.prediction import SCORE_COLUMNS, ScoreColumn
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import no_rows, rows_of_file

    part, code_policy = ModelPart.load(model).with_named_module(model.parent), given_codes(reasons, codes)
    score_columns = {}
    if points is not None:
        read_scale: ScoreColumn = require_tool(SCORE_COLUMNS, "points", "--points", part.name)
        score_columns["points"] = read_scale(part, points)
    check_writable(out, unscored)
    if data is None and part.columns:
        raise ConfigError(
            f"the model part of {part.name} has columns, but no table is given",
            "give --data",
            code="SVFL-COMMAND-USAGE",
            party=part.name,
        )
    if data is None:
        refuse_unused(context, names_of(option_groups.IdOptions), "without --data", "add --data")
    if part.name != part.asker:
        refuse_unused(context, ("out", "unscored", "points"), f"here, since only {part.asker} receives the scores")
    with progress("reading") as on_progress:
        rows = no_rows() if data is None else rows_of_file(part, data, row_ids.options, on_progress=on_progress)
    check_disks({path: PREDICTION_ROW_BYTES * max(0, rows.count) for path in (out, unscored) if path is not None})
    with (
        shared_locks(model, *([] if data is None else [data])),
        signals.exit_on_signal(),
        session.events(part.name, peers),
        write_predictions(part, out, score_columns, unscored, rows=rows) as callbacks,
        progress("predicting") as on_progress,
    ):
        counts = predict_rows(
            part,
            rows,
            session.settings(peers),
            **callbacks,
            on_progress=on_progress,
            ledger=ledger,
            code_policy=code_policy,
        )
    if part.name != part.asker:
        typer.echo(f"{counts.requested:,} rows predicted; only {part.asker} receives the scores")
    elif out is not None:
        typer.echo(f"{counts}; the scores are in {out}")
    elif counts.scored < counts.requested:
        typer.echo(str(counts), err=True)


def relay(
    name: Annotated[str, typer.Option("--party", metavar="NAME", help="The hub's name in the file of peers.")],
    peers: options.PeersFile = Path("peers.toml"),
    session: option_groups.SessionOptions = option_groups.SessionOptions(timeout=86_400.0),
) -> None:
    """Run a hub that is not a party: forward the encrypted packets of the parties of one run."""
    from securevfl.transport.relay import Relay
    from securevfl.transport.tls import Credentials

    settings = session.settings(peers)
    if name != settings.peers.hub or name in settings.peers.parties:
        raise PartiesError(
            f"{name} is not a separate hub in {peers}",
            "name the hub of that file with --party",
            code="SVFL-PARTIES-ROLE",
            party=name,
        )
    with signals.exit_on_signal(), session.events():
        credentials = Credentials(settings.certs, name)
        Relay(credentials, settings.peers, listen=settings.listen, patience=settings.patience).run(settings.timeout)
