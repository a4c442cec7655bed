"""The commands `serve` and `score`: one party stays up and answers, another requests scores."""

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
    max_ids: Annotated[int, typer.Option(min=1, help="Maximum number of ids per request.")] = 10_000,
    monitor: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /health and /metrics there, as in 127.0.0.1:9464.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Maximum number of sessions at a time.")] = 16,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Maximum number of clients that wait for a session to end.")
    ] = 64,
    session: option_groups.PeerOptions = option_groups.PeerOptions(timeout=60.0),
    log: options.Log = None,
) -> None:
    """Stay up and answer scoring requests of the party with labels, until SIGTERM.

    Each request reveals to that party which of its ids you have, and a score for each of these. Your disclosure ledger
    counts both and refuses beyond its limits: securevfl ledger --party NAME --limit scores=100000 --limit ids=50000.
    All rows of the table are served, independent of an alignment. With --reasons and --codes the party also learns
    which of your columns raise a row's score most, under names that you choose. Events are written to stderr or --log,
    one line of JSON each. SIGTERM lets a request that is being processed finish.
    """
    from securevfl.organisations.monitor import Monitor
    from securevfl.organisations.serve import Server
    from securevfl.organisations.session_manager import SessionLimits
    from securevfl.runtime import eventlog
    from securevfl.training.drift_page import drift
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import IndexedRows, rows_of_file
    from securevfl.transport import certs as certificates

    part, code_policy = ModelPart.load(model).with_named_module(model.parent), given_codes(reasons, codes)
    rows = IndexedRows.of(part.name, rows_of_file(part, data, id_column=id_column, ordered=False))
    settings = replace(session.settings(peers), limits=SessionLimits(max_sessions, max_waiting))
    with shared_locks(model, data), ExitStack() as stack:
        handler = eventlog.write_to(sys.stderr if log is None else log)
        stack.callback(eventlog.LOGGER.removeHandler, handler)
        status = None
        if monitor is not None:
            expires = certificates.show(settings.certs / f"{part.name}.pem").valid_until.timestamp()
            status = stack.enter_context(Monitor(monitor, part.name, expires))
        server = Server(
            part,
            rows,
            settings,
            max_ids=max_ids,
            ledger=ledger,
            on_request=(lambda request: None) if status is None else status.count,
            executor=stack.enter_context(options.pool_of(len(rows.ids))),
            code_policy=code_policy,
        )
        if status is not None:
            try:
                status.shifts(drift(part, data, id_column=id_column))
            except TableError as error:  # the model part has no summary of training rows, or the table has too few rows
                eventlog.emit(part.name, "no drift", {"reason": str(error)})
            status.watch(server)
        with _until_stopped(server) as stopping:
            server.run(stopping)
        eventlog.emit(part.name, "ended", {})


@contextmanager
def _until_stopped(server: Server) -> Iterator[Callable[[], bool]]:
    """Let SIGTERM and Ctrl-C end the `with` block.

    While the server waits, they end it at once; while it processes a request, after that request. A second signal
    always
    ends it at once.

    Args:
        server: the server.

    Yields:
        A function that returns whether a signal has arrived.
    """
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping or not server.answering:
            raise KeyboardInterrupt
        stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: stopping
    except KeyboardInterrupt:
        if server.answering:
            raise typer.Exit(1) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def score(
    model: options.Model,
    data: options.Data,
    peers: options.PeersFile = Path("peers.toml"),
    id_column: options.IdColumn = "id",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV file for predictions; by default stdout.")
    ] = None,
    unscored: options.Unscored = None,
    ledger: options.Ledger = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Stay up and answer HTTP clients there, as in 127.0.0.1:8080."),
    ] = None,
    http_token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that HTTP clients send.")
    ] = None,
    http_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate for TLS, in PEM.")] = None,
    http_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate.")] = None,
    sessions: Annotated[
        int, typer.Option(min=1, help="With --http: number of sessions, with one block of rows under way in each.")
    ] = 4,
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Request scores of your rows from the parties that serve; for the party with labels.

    Ids are compared by private set intersection: no party learns an id that it does not have. The CSV contains the rows
    that all parties have: id, prediction and probability (of the positive class, or one column per class). With --http
    the command stays up, and clients request rows of --data, or rows that they send, in JSON.
    """
    from securevfl.cli.prediction_output import write_predictions
    from securevfl.display.progress import progress
    from securevfl.organisations.scoring import score_rows
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import IndexedRows, rows_of_file

    part = ModelPart.load(model).with_named_module(model.parent)
    check_writable(out, unscored)
    rows = IndexedRows.of(part.name, rows_of_file(part, data, id_column=id_column, ordered=False))
    settings, events = session.settings(peers), session.events(part.name, peers)
    if http is not None:
        from securevfl.organisations.gateway import Gateway
        from securevfl.organisations.http_server import HttpAddress, serve_http

        address = HttpAddress(http, _token(http_token), http_cert, http_key)
        with shared_locks(model, data), events:
            serve_http(Gateway(part, rows, settings, ledger=ledger, max_sessions=sessions), address)
        return
    with (
        shared_locks(model, data),
        signals.exit_on_signal(),
        events,
        write_predictions(part, out, unscored=unscored, rows=rows) as callbacks,
        options.pool_of(len(rows.ids)) as pool,
        progress("scoring") as on_progress,
    ):
        counts = score_rows(part, rows, settings, **callbacks, on_progress=on_progress, ledger=ledger, executor=pool)
    typer.echo(str(counts) if out is None else f"{counts}; they are in {out}", err=out is None)


def _token(path: Path | None) -> str:
    """Read the token of HTTP clients, or raise ConfigError if there is none."""
    if path is None:
        raise ConfigError(
            "--http needs a token for clients",
            "write a token to a file, and name the file with --http-token",
            code="SVFL-HTTP-TOKEN",
        )
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise ConfigError(
            f"--http-token {path} cannot be read as ASCII text", "check the path", code="SVFL-HTTP-TOKEN"
        ) from None
