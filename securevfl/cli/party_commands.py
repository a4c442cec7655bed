"""Commands of one party among several organisations: align, prepare, join, predict, relay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.file_locks import shared_locks
from securevfl.base.files import check_writable
from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options
from securevfl.cli.reason_code_options import Codes, Reasons, given_codes
from securevfl.errors import ConfigError, PartiesError

if TYPE_CHECKING:
    from securevfl.consent.consent_sheet import ConsentSheet
    from securevfl.data.party import Party
    from securevfl.job import Job
    from securevfl.training.comparison import Comparison


def align(
    party: options.Name,
    data: options.Data,
    peers: options.PeersFile = Path("peers.toml"),
    id_column: options.IdColumn = "id",
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Find the ids that all parties have, showing no others, and write the shared row order beside the data.

    Every party runs this. What was done before a cut or a restart is kept and not done again.
    """
    from securevfl.data.readers import id_rule_version, read_ids
    from securevfl.data.row_order import write_rows
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.display.progress import progress
    from securevfl.organisations.align import align_privately
    from securevfl.organisations.peer_session import run_session
    from securevfl.runtime.channel import Channel

    venue, work = meeting.venue(peers), Path(f"{data}.align")
    active, *passives = venue.peers.parties
    if party not in venue.peers.parties:
        raise PartiesError(f"--party: one of {', '.join(venue.peers.parties)} was expected, {party} came; correct it")
    ids, rule = read_ids(data, id_column=id_column), id_rule_version(data, id_column)

    def talk(channel: Channel) -> int:
        rows = align_privately(
            party, ids, channel, active=active, passives=passives, on_progress=on_progress, journal=work
        )
        write_rows(data, rows)
        return len(rows)

    terms = {"parties": [active, *passives], "task": "align"} | ({} if rule is None else {"ids by rule": rule})
    kept = f"what was done is kept in {work}"
    with (
        shared_locks(data),
        signals.exit_on_signal(lambda: kept),
        meeting.events(party, peers),
        progress("aligning") as on_progress,
    ):
        count = run_session(party, venue, terms, talk, ledger=DisclosureLedger.open(party, None), resumes=True)
    typer.echo(f"{count:,} of {len(ids):,} rows are shared by all; their order is in {data}.rows.npy")
    if not count:
        hint = "are ids written alike? --id COLUMN, with a comma behind it, at all parties leaves out capitals, blanks,"
        typer.echo(f"{hint} hyphens and accents", err=True)


def prepare(
    job_file: options.SharedJob,
    table: option_groups.TableOptions,
    peers: options.PeersByJob = None,
    ahead: options.PreprocessingDir = None,
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Do ahead what a training on shares needs, so that join takes minutes. Every party runs this, on its table.

    The folder that is written holds masks: keep it as the table itself.
    """
    from securevfl.display.progress import progress
    from securevfl.job import Job
    from securevfl.organisations.prepare import prepare as run

    job, party, place, folder = Job.load(job_file), table.party, _peers(job_file, peers), _ahead(table.data, ahead)
    own = table.aligned(job)
    with shared_locks(table.data), meeting.events(party, place), progress("preparing") as on_round:
        run(job, own, meeting.venue(place), preprocessing=folder, on_round=on_round)
    typer.echo(f"what {party} has prepared is in {folder}")


def _peers(job_file: Path, named: Path | None) -> Path:
    """Return the file of peers: the one named, or the one beside the job."""
    return job_file.parent / "peers.toml" if named is None else named


def _ahead(data: Path, named: Path | None) -> Path:
    """Return the folder of work ahead of a training on this table."""
    return Path(f"{data}.ahead") if named is None else named


OwnTable = Annotated[
    Path | None,
    typer.Option("--data", metavar="FILE", help="Your table, as above; none for a server, as FDML has one."),
]
Every = Annotated[int, typer.Option(min=1, help="Rounds between two states.")]
Again = Annotated[
    bool, typer.Option("--again", help="Train anew although this job is over on this table; counts once more.")
]


def join(
    job_file: options.SharedJob,
    party: options.Name,
    data: OwnTable = None,
    peers: options.PeersByJob = None,
    id_column: options.IdColumn = "id",
    label_column: options.LabelColumn = "y",
    save: options.ModelFile = None,
    checkpoints: options.CheckpointDir = None,
    every: Every = 10,
    ahead: options.PreprocessingDir = None,
    consent: option_groups.ConsentOptions = option_groups.ConsentOptions(),
    again: Again = False,
    html: options.Html = None,
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Train with the other parties. Every party runs this; one that was cut off or killed runs it again.

    The first time your consent sheet is shown, once all parties are there, and you are asked to agree; without a
    terminal --accept names it by its digest. It is not asked again for the same sheet. A training that is over is not
    begun again without --again.

    Rows are taken in the order that `securevfl align` has left beside the data. A large Parquet file is copied into one
    of plain rows beside it, gone when the training is through, so that it need not fit in memory.
    """
    from securevfl.cli.consent_prompt import check_agreed
    from securevfl.cli.live import live, step_of
    from securevfl.cli.show import figures, run_time_line
    from securevfl.consent.agreed_sheets import AgreedSheets
    from securevfl.data.load import delete_table_copy
    from securevfl.job import Job
    from securevfl.organisations.join import join as run
    from securevfl.training.checkpoint import FINISHED_ROUND, Checkpoints
    from securevfl.training.local_baseline import baseline_metrics
    from securevfl.training.model_part import PartStatus
    from securevfl.training.run_page import write_report
    from securevfl.training.run_setup import run_key
    from securevfl.transport.peers import Peers

    ledger, agree = consent.asking(party, f"securevfl join {job_file}")
    job, place = Job.load(job_file), _peers(job_file, peers)
    table = job_file.parent / party if data is None else data
    save = table.with_name(f"{party}.model.json") if save is None else save
    folder = Path(f"{table}.states") if checkpoints is None else checkpoints
    check_writable(html, save)
    check_writable(folder, folder=True)
    states = Checkpoints(folder, party, every=every)
    own = (
        _helper(job, party)
        if data is None
        else option_groups.TableOptions(party, data, id_column, label_column).aligned(job)
    )
    key = run_key(job, own)
    sheets: list[ConsentSheet] = []

    def kept() -> str:
        rounds = [each for each in states.rounds(key) if each != FINISHED_ROUND]
        return f"its state after {rounds[-1]} rounds is kept in {folder}" if rounds else "no round of it was kept"

    def asked(sheet: ConsentSheet) -> None:
        sheets[:] = [sheet]
        agree(sheet)

    others = [name for name in Peers.load(place).parties if name != party]
    line = live(others, step_of(job), verbose=meeting.verbose)
    with shared_locks(table, save), signals.exit_on_signal(kept), line as on_round, meeting.events():
        part = run(
            job,
            own,
            place,
            **meeting.keys,
            checkpoints=states,
            save=save,
            ledger=ledger,
            preprocessing=_ahead(table, ahead),
            retrain=again,
            consent=asked,
            on_round=on_round,
        )
    if html is not None:
        write_report(
            html, part, alone=baseline_metrics(job, own), sheet="".join(sheet.first_screen for sheet in sheets)
        )
    if data is not None:
        delete_table_copy(own, data)
    if part.status is PartStatus.NEW:
        typer.echo(run_time_line(part.path))
    else:
        why = "job and table are the same (--again trains anew)"
        typer.echo(f"nothing was trained: this model is {part.status}; {why}")
    if part.metrics:
        typer.echo(f"{figures(part.metrics, part.positive, part.metric_std_errors)} on the {part.evaluated_on}")
    typer.echo(f"{part.name}'s part of the model is in {save}")
    if part.status is not PartStatus.NEW:
        check_agreed(AgreedSheets(ledger), consent.accept)
    if part.status is PartStatus.UNCONFIRMED:  # by the others
        raise typer.Exit(2)


def compare_at(
    job_file: Path,
    table: option_groups.TableOptions,
    peers: Path | None,
    consent: option_groups.ConsentOptions,
    meeting: option_groups.SessionOptions,
) -> Comparison | None:
    """Compare models with the other parties on their own machines, as the command `compare --party` does."""
    from securevfl.cli.live import live, step_of
    from securevfl.cli.show import console
    from securevfl.job import Job
    from securevfl.organisations.compare import compare_with

    party = table.party
    ledger, agree = consent.asking(party, f"securevfl compare {job_file} --party {party}")
    job, venue = Job.load(job_file), meeting.venue(_peers(job_file, peers))
    own, said = table.aligned(job), console(err=True)
    line = live([each for each in venue.peers.parties if each != party], step_of(job), verbose=meeting.verbose)
    with shared_locks(table.data), signals.exit_on_signal(), line as on_round, meeting.events():
        found = compare_with(
            job,
            own,
            venue,
            ledger=ledger,
            consent=agree,
            on_model=lambda what: said.print(f"training: {what}", soft_wrap=True),
            on_round=on_round,
        )
    typer.echo(f"models were compared, for {venue.peers.active} to see; none is kept" if found is None else str(found))
    return found


def _helper(job: Job, party: str) -> Party:
    """Return the party without a table that this job has a place for. ConfigError if it has none."""
    from securevfl.data.party import Helper

    if not job.family.example_helpers:
        raise ConfigError(f"--data: a table was expected, as {job.family.name} has no place for {party} without one")
    return Helper(party, job.family.example_helpers[0][1])


def predict(
    model: options.Model,
    data: OwnTable = None,
    peers: options.PeersFile = Path("peers.toml"),
    id_column: options.IdColumn = "id",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the party that asks gets its CSV; by default stdout.")
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(metavar="POINTS:ODDS:DOUBLE", help="Add scorecard points, as in 600:50:20, of a logistic model."),
    ] = None,
    reasons: Reasons = None,
    codes: Codes = None,
    left: options.Unscored = None,
    ledger: options.Ledger = None,
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Predict new rows, one or many, with the other parties. Every party runs this with its own part and table.

    The party with labels, or whoever the job names, gets id, prediction and probability (of the positive class, or one
    column a class). With --reasons and --codes it is told, of each row, which of your columns cost it most, by names
    that you choose; your ledgers count that.
    """
    from securevfl.cli.prediction_output import write_predictions
    from securevfl.display.progress import progress
    from securevfl.organisations.predict import predict_rows
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import no_rows, rows_of_file
    from securevfl.training.scorecard import scale_of

    part, code_policy = ModelPart.load(model), given_codes(reasons, codes)
    scale = None if points is None else scale_of(part, points)
    check_writable(out, left)
    if data is None and part.columns:
        raise ConfigError(f"--data: a table was expected, as the part of {part.name} has columns; name its file")
    with progress("reading") as on_progress:
        rows = no_rows() if data is None else rows_of_file(part, data, id_column=id_column, on_progress=on_progress)
    with (
        shared_locks(model, *([] if data is None else [data])),
        signals.exit_on_signal(),
        meeting.events(part.name, peers),
        write_predictions(part, out, scale, left) as written,
        progress("predicting") as on_progress,
    ):
        answered = predict_rows(
            part, rows, meeting.venue(peers), **written, on_progress=on_progress, ledger=ledger, code_policy=code_policy
        )
    if part.name != part.asker:
        typer.echo(f"{answered.requested:,} rows predicted, for {part.asker} to see")
    elif out is not None:
        typer.echo(f"{answered}; they are in {out}")
    elif answered.scored < answered.requested:
        typer.echo(str(answered), err=True)


def relay(
    name: Annotated[str, typer.Option("--party", metavar="NAME", help="The hub's name in the file of peers.")],
    peers: options.PeersFile = Path("peers.toml"),
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(timeout=86_400.0),
) -> None:
    """Be a hub that is no party: pass on, sealed, what the parties of one run say to each other."""
    from securevfl.transport.relay import Relay
    from securevfl.transport.tls import Credentials

    venue = meeting.venue(peers)
    if name != venue.peers.hub or name in venue.peers.parties:
        raise PartiesError(f"--party: a hub that is no party was expected, {name} came; see hub in {peers}")
    with signals.exit_on_signal(), meeting.events():
        Relay(Credentials(venue.certs, name), venue.peers, listen=venue.listen, patience=venue.patience).run(
            venue.timeout
        )
