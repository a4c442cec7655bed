"""The commands `serve` and `score`: one party keeps running and answers, another requests scores.

With `score --http`, the requesting party runs a *gateway*, which requests scores for its applications. Each request
runs in a session: the messages of all parties from the first connection to the last answer. A party's *ledger* records
and limits what its table has disclosed. A party's *part of the model* is the file with the weights of its columns.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.disk_space import check_disks
from securevfl.base.file_locks import shared_locks
from securevfl.base.files import check_writable
from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options
from securevfl.cli.reason_code_options import Codes, Reasons, given_codes
from securevfl.cli.unused_options import refuse_unused
from securevfl.errors import ConfigError, TableError

if TYPE_CHECKING:
    from securevfl.organisations.gateway import Gateway
    from securevfl.organisations.http_server import HttpAddress

_POLL_SECONDS = 0.1  # seconds between two checks of whether SIGTERM or Ctrl-C has arrived


def serve(
    model: options.Model,
    data: options.Data,
    peers: options.PeersFile = Path("peers.toml"),
    row_ids: option_groups.IdOptions = option_groups.IdOptions(),
    reasons: Reasons = None,
    codes: Codes = None,
    ledger: options.Ledger = None,
    max_ids: Annotated[int, typer.Option(min=1, help="Maximum number of ids per request.")] = 10_000,
    monitor: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve a status page, /health and /metrics at this address, as in 127.0.0.1:9464.",
        ),
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Maximum number of sessions at a time.")] = 16,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Maximum number of clients that wait for a session to end.")
    ] = 64,
    session: option_groups.PeerOptions = option_groups.PeerOptions(timeout=60.0),
    log: options.Log = None,
) -> None:
    """Keep running and answer scoring requests of the party with labels, until SIGTERM.

    Each request reveals to that party which of its ids you have, and a score for each of these. Your disclosure ledger
    counts both and refuses beyond its limits: securevfl ledger --party NAME --limit scores=100000 --limit ids=50000.
    All rows of the table can be scored; the table need not be aligned. With --reasons and --codes the party also learns
    which of your columns raise a row's score most, under names that you choose. Events are written to stderr or --log,
    one line of JSON each. On a terminal a screen shows them with sessions, rows per second and the unused parts of your
    limits. After SIGTERM, requests that are being processed are finished first.
    """
    from securevfl.cli.service_screen import (
        RequestTally,
        ServiceScreen,
        print_line,
        service_screen,
        shows_events,
    )
    from securevfl.organisations.budgets import budgets_of
    from securevfl.organisations.serve import Server
    from securevfl.organisations.served_rows import served_rows_check
    from securevfl.organisations.session_manager import SessionLimits
    from securevfl.runtime import eventlog
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import IndexedRows, rows_of_file
    from securevfl.transport import certs as certificates

    part, code_policy = ModelPart.load(model).with_named_module(model.parent), given_codes(reasons, codes)
    rows = IndexedRows.of(part.name, rows_of_file(part, data, row_ids.options, ordered=False))
    settings = replace(session.settings(peers), limits=SessionLimits(max_sessions, max_waiting))
    tally = RequestTally()
    with shared_locks(model, data), ExitStack() as stack:
        if log is not None or not shows_events():
            handler = eventlog.write_to(sys.stderr if log is None else log)
            stack.callback(eventlog.LOGGER.removeHandler, handler)
        status = None
        if monitor is not None:
            from securevfl.organisations.http_server import HttpServer, ListenAddress, running
            from securevfl.organisations.monitor import MAX_MONITOR_CONNECTIONS, Monitor, monitor_application

            expires = certificates.show(settings.certs / f"{part.name}.pem").valid_until.timestamp()
            status = Monitor(part.name, expires)
            address = ListenAddress("--monitor", monitor)
            port = HttpServer(monitor_application(status), address, MAX_MONITOR_CONNECTIONS)
            stack.enter_context(running(port, "status port"))
        server = Server(
            part,
            rows,
            settings,
            max_ids=max_ids,
            ledger=ledger,
            on_request=tally.count if status is None else tally.counts_and(status.count),
            executor=stack.enter_context(options.pool_of(len(rows.ids))),
            code_policy=code_policy,
        )
        if status is not None:
            try:
                if (check := served_rows_check()) is not None:
                    status.show_shifts(check(part, data, row_ids.options))
            except TableError as error:  # the model part has no summary of training columns, or the table is short
                eventlog.emit(part.name, "drift not measured", {"reason": str(error)})
        title = f"{part.name} serves {len(rows.ids):,} rows"
        screen = ServiceScreen(
            title, lambda: tally.figures(server.sessions, server.max_sessions), lambda: budgets_of(server.ledger)
        )
        with signals.service_signals(lambda: server.busy) as stop, service_screen(screen):
            if status is not None:
                status.watch(server)
            server.run(lambda: stop.arrived)
        eventlog.emit(part.name, "service ended", {})
        print_line(f"{part.name}: the service has ended after {stop.cause}: {tally}")


def score(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    peers: options.PeersFile = Path("peers.toml"),
    row_ids: option_groups.IdOptions = option_groups.IdOptions(),
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=options.output_file, help="CSV file for predictions; by default stdout."),
    ] = None,
    unscored: options.Unscored = None,
    ledger: options.Ledger = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Keep running and answer HTTP clients at this address, as in 127.0.0.1:8080."
        ),
    ] = None,
    http_token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the secret token that HTTP clients must send.")
    ] = None,
    http_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate for TLS, in PEM.")] = None,
    http_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of the certificate, in PEM.")
    ] = None,
    sessions: Annotated[
        int, typer.Option(min=1, help="With --http: number of sessions; each requests one block of rows at a time.")
    ] = 4,
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Request scores of your rows from the parties that serve; for the party with labels.

    Ids are compared by private set intersection: no party learns an id that it does not have. The CSV contains the rows
    that all parties have: id, prediction and probability (of the positive class, or one column per class). With --http
    the command keeps running. HTTP clients then request scores in JSON, of rows of --data or of rows that they send.
    """
    from securevfl.cli.prediction_output import write_predictions
    from securevfl.display.progress import progress
    from securevfl.organisations.preconditions import PREDICTION_ROW_BYTES
    from securevfl.organisations.scoring import score_rows
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import IndexedRows, rows_of_file

    if http is None:
        unused = ("http_token", "http_cert", "http_key", "sessions")
        refuse_unused(context, unused, "without --http", "add --http")
    else:
        refuse_unused(context, ("out", "unscored"), "with --http, since clients receive the scores")
    part = ModelPart.load(model).with_named_module(model.parent)
    check_writable(out, unscored)
    rows = IndexedRows.of(part.name, rows_of_file(part, data, row_ids.options, ordered=False))
    check_disks({path: PREDICTION_ROW_BYTES * len(rows.ids) for path in (out, unscored) if path is not None})
    settings = session.settings(peers)
    if http is not None:
        from securevfl.cli.service_screen import shows_events
        from securevfl.organisations.gateway import Gateway
        from securevfl.organisations.http_server import HttpAddress

        address = HttpAddress(http, _token(http_token), http_cert, http_key)
        verbose = session.verbose and not shows_events()  # if the screen shows events, they are not printed on stderr
        with shared_locks(model, data), replace(session, verbose=verbose).events():
            _run_gateway(Gateway(part, rows, settings, ledger=ledger, max_sessions=sessions), address)
        return
    with (
        shared_locks(model, data),
        signals.exit_on_signal(),
        session.events(part.name, peers),
        write_predictions(part, out, unscored=unscored, rows=rows) as callbacks,
        options.pool_of(len(rows.ids)) as pool,
        progress("scoring") as on_progress,
    ):
        counts = score_rows(part, rows, settings, **callbacks, on_progress=on_progress, ledger=ledger, executor=pool)
    typer.echo(str(counts) if out is None else f"{counts}; the scores are in {out}", err=out is None)


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


def _run_gateway(gateway: Gateway, address: HttpAddress) -> None:
    """Run a gateway until SIGTERM or Ctrl-C; requests that wait are answered first."""
    from securevfl.cli.service_screen import ServiceFigures, ServiceScreen, print_line, service_screen
    from securevfl.organisations.budgets import budgets_of
    from securevfl.organisations.http_api import application
    from securevfl.organisations.http_server import HttpServer, running

    def figures() -> ServiceFigures:
        return ServiceFigures(
            gateway.sessions,
            gateway.max_sessions,
            gateway.blocks,
            gateway.scored,
            gateway.unscored,
            waiting=gateway.waiting,
        )

    title = f"{gateway.party}'s gateway at {address.address}"
    screen = ServiceScreen(title, figures, lambda: budgets_of(gateway.ledger))
    server = HttpServer(application(gateway, address.token), address.listen)
    with signals.service_signals(lambda: True) as stop:
        with running(server, "gateway") as thread, service_screen(screen):
            gateway.start()
            while not stop.arrived and thread.is_alive():
                time.sleep(_POLL_SECONDS)
        gateway.stop()
    rows = f"{gateway.scored:,} rows scored, {gateway.unscored:,} not scored"
    print_line(f"{gateway.party}: the gateway has ended after {stop.cause}: {rows}")
