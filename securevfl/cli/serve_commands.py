"""Commands of parties that score rows without meeting for it: one stays up and answers, one asks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.file_locks import shared_locks
from securevfl.base.files import check_writable
from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options
from securevfl.cli.reason_code_options import Codes, Reasons, given_codes
from securevfl.errors import ConfigError, TableError

if TYPE_CHECKING:
    from securevfl.organisations.serve import Server


def serve(
    model: options.Model,
    data: options.Data,
    peers: options.PeersFile = Path("peers.toml"),
    id_column: options.IdColumn = "id",
    reasons: Reasons = None,
    codes: Codes = None,
    ledger: options.Ledger = None,
    most: Annotated[int, typer.Option(min=1, help="Ids that one request may ask about.")] = 10_000,
    monitor: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /health and /metrics there, as on 127.0.0.1:9464.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Conversations of askers at a time.")] = 16,
    max_waiting: Annotated[int, typer.Option(min=0, help="Askers more that wait for one to end.")] = 64,
    meeting: option_groups.PeerOptions = option_groups.PeerOptions(timeout=60.0),
    log: options.Log = None,
) -> None:
    """Stay up and answer requests of the party with labels for scores of your rows, until SIGTERM.

    Each request tells that party which of its ids you have, and a score of each of these. Your disclosure ledger counts
    both and refuses what goes beyond its limits: securevfl ledger --party NAME --limit scores=100000 --limit ids=50000.
    All rows of the table are served, whatever order an alignment has left beside it.
    With --reasons and --codes it is told, too, which of your columns cost a row most, by the names that you choose.
    Events go to stderr, one line of JSON each, or to --log. SIGTERM lets a request that is being answered end first.
    """
    from securevfl.organisations.monitor import Monitor
    from securevfl.organisations.serve import Server
    from securevfl.organisations.session_manager import SessionLimits
    from securevfl.runtime import eventlog
    from securevfl.training.drift_page import drift
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import IndexedRows, rows_of_file
    from securevfl.transport import certs as certificates

    part, code_policy = ModelPart.load(model), given_codes(reasons, codes)
    held = IndexedRows.of(part.name, rows_of_file(part, data, id_column=id_column, ordered=False))
    venue = replace(meeting.venue(peers), limits=SessionLimits(max_sessions, max_waiting))
    with shared_locks(model, data), ExitStack() as stack:
        handler = eventlog.write_to(sys.stderr if log is None else log)
        stack.callback(eventlog.LOGGER.removeHandler, handler)
        shown = None
        if monitor is not None:
            expires = certificates.show(venue.certs / f"{part.name}.pem").valid_until.timestamp()
            shown = stack.enter_context(Monitor(monitor, part.name, expires))
        server = Server(
            part,
            held,
            venue,
            max_ids=most,
            ledger=ledger,
            on_request=(lambda ended: None) if shown is None else shown.count,
            executor=stack.enter_context(options.pool_of(len(held.ids))),
            code_policy=code_policy,
        )
        if shown is not None:
            try:
                shown.shifts(drift(part, data, id_column=id_column))
            except TableError as error:  # of a part that keeps no baseline, or of too few rows
                eventlog.emit(part.name, "no drift", {"reason": str(error)})
            shown.watch(server)
        with _until_stopped(server) as stopping:
            server.run(stopping)
        eventlog.emit(part.name, "ended", {})


@contextmanager
def _until_stopped(server: Server) -> Iterator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C end the block: at once while the server waits, after the request while it answers one, and at
    once when they come again."""
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not server.answering:
            raise KeyboardInterrupt
        asked = True

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: asked
    except KeyboardInterrupt:
        if server.answering:
            raise typer.Exit(1) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def score(
    model: options.Model,
    data: options.Data,
    peers: options.PeersFile = Path("peers.toml"),
    id_column: options.IdColumn = "id",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the CSV goes; by default stdout.")] = None,
    left: options.Unscored = None,
    ledger: options.Ledger = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Stay up and answer applications there, as on 127.0.0.1:8080."),
    ] = None,
    http_token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The token that applications send, in a file.")
    ] = None,
    http_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate for TLS, in PEM.")] = None,
    http_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    conversations: Annotated[
        int, typer.Option(min=1, help="Conversations that the gateway holds, a block of rows on its way in each.")
    ] = 4,
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Ask the parties that serve for scores of your rows; for the party with labels.

    Ids are compared by private set intersection: nobody learns of an id that it does not have. The CSV has the rows
    that all parties have: id, prediction and probability (of the positive class, or one column a class).
    With --http it stays up instead, and applications ask for rows of --data, or for rows that they bring, in JSON.
    """
    from securevfl.cli.prediction_output import write_predictions
    from securevfl.display.progress import progress
    from securevfl.organisations.scoring import score_rows
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import IndexedRows, rows_of_file

    part = ModelPart.load(model)
    check_writable(out, left)
    held = IndexedRows.of(part.name, rows_of_file(part, data, id_column=id_column, ordered=False))
    venue, told = meeting.venue(peers), meeting.events(part.name, peers)
    if http is not None:
        from securevfl.organisations.gateway import Gateway
        from securevfl.organisations.http_server import HttpAddress, serve_http

        place = HttpAddress(http, _token(http_token), http_cert, http_key)
        with shared_locks(model, data), told:
            serve_http(Gateway(part, held, venue, ledger=ledger, max_sessions=conversations), place)
        return
    with (
        shared_locks(model, data),
        signals.exit_on_signal(),
        told,
        write_predictions(part, out, left=left) as written,
        options.pool_of(len(held.ids)) as pool,
        progress("scoring") as on_progress,
    ):
        answered = score_rows(part, held, venue, **written, on_progress=on_progress, ledger=ledger, executor=pool)
    typer.echo(str(answered) if out is None else f"{answered}; they are in {out}", err=out is None)


def _token(path: Path | None) -> str:
    """Read the token of applications. ConfigError if no file is named, or it cannot be read."""
    if path is None:
        raise ConfigError(
            "--http: a token for applications was expected; write one to a file, and name it --http-token"
        )
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise ConfigError(f"--http-token {path}: a file of ASCII characters was expected; check the path") from None
