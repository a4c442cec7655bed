"""The local status port of a server, a party that answers scoring requests: a page, /health as JSON and /metrics.

/metrics is for Prometheus. The port shows counts, seconds and bytes, but no id and no value of anyone's data. Requests
to it change nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from securevfl.base.extras import import_extra
from securevfl.base.version import __version__
from securevfl.data.drift import Drift
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.organisations.serve import RequestOutcome, Server
from securevfl.training.drift_page import DRIFT_HEADS, rows
from securevfl.transport.peers import split_address

OUTCOMES = "answered", "refused", "failed"


class Monitor:
    """Counts requests, and shows the counts on the status port while its `with` block runs.

    Args:
        address: host:port to listen on.
        party: name of the party.
        expires: time at which the party's certificate expires, in seconds since 1970.

    Raises:
        ConfigError: prometheus-client is not installed, or the address cannot be used.
    """

    def __init__(self, address: str, party: str, expires: float) -> None:
        self._party, self._expires = party, expires
        self._server: Server | None = None
        self._latest: RequestOutcome | None = None
        self._drift: list[Drift] = []
        self._limits: dict[str, html.Cell] = {}
        self._library = library = import_extra("prometheus_client", "serve", "--monitor")
        self._registry = library.CollectorRegistry()
        self.content_type: str = library.CONTENT_TYPE_LATEST
        self._options = options = {"registry": self._registry, "namespace": "securevfl"}
        library.Info("party", "The party.", **options).info({"party": party, "version": __version__})
        self._requests = library.Counter("requests", "Finished requests, by outcome.", ["outcome"], **options)
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        self._ids = library.Counter("ids_asked", "Ids in answered requests.", **options)
        self._scored = library.Counter("rows_scored", "Scored rows.", **options)
        self._sent = library.Counter("sent_bytes", "Bytes of all sent messages.", **options)
        self._seconds = library.Histogram("request_seconds", "Seconds of answered requests.", **options)
        library.Gauge("sessions", "Running sessions.", **options).set_function(
            lambda: float(0 if self._server is None else self._server.sessions)
        )
        library.Gauge("answering", "1 while a request is being processed.", **options).set_function(
            lambda: float(self._server is not None and self._server.answering)
        )
        library.Gauge("certificate_expiry_timestamp_seconds", "Expiry of the certificate.", **options).set(expires)
        try:
            self._http = ThreadingHTTPServer(split_address("--monitor", address), _handler(self))
        except (OSError, ValueError) as cause:
            raise ConfigError(
                f"--monitor {address} cannot be used: {cause}",
                "name a free host:port of this machine",
                code="SVFL-ADDRESS",
            ) from None

    def shifts(self, drifts: Sequence[Drift]) -> None:
        """Show how far the columns of the server's table have drifted from those of the training."""
        self._drift = list(drifts)
        for name, description in (("psi", "Population stability index"), ("missing", "Share of missing values")):
            gauge = self._library.Gauge(f"drift_{name}", f"{description} of a column.", ["column"], **self._options)
            for drift in drifts:
                gauge.labels(drift.column).set(getattr(drift, name))
        shifted = self._library.Gauge("drift_shifted_columns", "Columns that have shifted.", **self._options)
        shifted.set(sum(drift.shifted for drift in drifts))

    def watch(self, server: Server) -> None:
        """Show the state of this server on the status port."""
        self._server = server
        policy = server.served.code_policy
        codes = 0 if policy is None else policy.codes_per_row
        self._limits = {"maximum ids per request": server.served.max_ids, "reason codes per row": codes}

    def count(self, request: RequestOutcome) -> None:
        """Count a finished request with its outcome, bytes and seconds."""
        self._latest = request
        self._requests.labels(request.outcome).inc()
        self._sent.inc(request.sent)
        if request.counts is not None:
            self._ids.inc(request.counts.requested)
            self._scored.inc(request.counts.scored)
            self._seconds.observe(request.seconds)

    def health(self) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the status and content of /health.

        The status is 503 before the party accepts requests, and after its certificate has expired, because peers then
        refuse to connect.
        """
        valid = time.time() < self._expires
        up = self._server is not None and valid
        state = {
            "status": "ok" if up else "down",
            "party": self._party,
            "answering": self._server is not None and self._server.answering,
            "certificate": "valid" if valid else "expired",
            "last": None if self._latest is None else self._latest.outcome,
        }
        return HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE, state

    def metrics(self) -> bytes:
        """Return the content of /metrics, in the format of Prometheus."""
        return self._library.generate_latest(self._registry)

    def page(self) -> str:
        """Return the state as an HTML page with the figures of /metrics."""
        _, state = self.health()
        shifted = [drift.column for drift in self._drift if drift.shifted]
        expires = datetime.fromtimestamp(self._expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
        requests: dict[str, html.Cell] = {
            f"requests {outcome}": self._figure("requests_total", outcome=outcome) for outcome in OUTCOMES
        }
        counts: dict[str, html.Cell] = {
            "requested ids": self._figure("ids_asked_total"),
            "scored rows": self._figure("rows_scored_total"),
            "bytes sent": self._figure("sent_bytes_total"),
            "latest request": state["last"],
        }
        facts = {"status": state["status"], "certificate expires": expires} | self._limits
        body = [
            f"<h1>{html.escape(self._party)} serves</h1>",
            f'<p class="soft">securevfl {__version__}; counts since the start, without ids. As JSON: /health; for '
            "Prometheus: /metrics.</p>",
            html.section("State", html.facts(facts)),
            html.section("Requests", html.facts(requests | counts)),
        ]
        if self._drift:
            summary = f"Shifted: {', '.join(shifted)}." if shifted else "No column has shifted."
            table = html.table(DRIFT_HEADS, rows(self._drift))
            body.append(html.section("Drift of the served rows", f"<p>{html.escape(summary)}</p>", table))
        return html.page(f"{self._party} serves", body)

    def _figure(self, name: str, **labels: str) -> int:
        """Return one figure of /metrics."""
        return int(self._registry.get_sample_value(f"securevfl_{name}", labels))

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, name="monitor", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(monitor: Monitor) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serves three pages and nothing else."""

        timeout = 10  # a client must send its request within this many seconds

        def do_GET(self) -> None:
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain", b"Available: /, /health and /metrics\n"
            match self.path:
                case "/":
                    status, kind, body = HTTPStatus.OK, "text/html; charset=utf-8", monitor.page().encode()
                case "/health":
                    status, state = monitor.health()
                    kind, body = "application/json", json.dumps(state).encode()
                case "/metrics":
                    status, kind, body = HTTPStatus.OK, monitor.content_type, monitor.metrics()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, because the log is for events between parties."""

    return Handler
