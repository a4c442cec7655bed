"""What a standing party shows its operator on a local port: a page, /health as JSON, /metrics for Prometheus.

Counts, seconds and bytes, never an id or a value of anyone's data, and nothing that can be changed.
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
    """Counts requests and serves what it has counted, while it is entered.

    party: who is up. expires: seconds since 1970 at which its certificate ends. ConfigError if prometheus-client is not
    installed or the address cannot be had.
    """

    def __init__(self, address: str, party: str, expires: float) -> None:
        self._party, self._expires = party, expires
        self._server: Server | None = None
        self._last: RequestOutcome | None = None
        self._drift: list[Drift] = []
        self._gives: dict[str, html.Cell] = {}
        self._library = library = import_extra("prometheus_client", "serve", "--monitor")
        self._registry = library.CollectorRegistry()
        self.content_type: str = library.CONTENT_TYPE_LATEST
        self._own = own = {"registry": self._registry, "namespace": "securevfl"}
        library.Info("party", "Who is up.", **own).info({"party": party, "version": __version__})
        self._requests = library.Counter("requests", "Requests that are over, by outcome.", ["outcome"], **own)
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        self._asked = library.Counter("ids_asked", "Ids that answered requests asked about.", **own)
        self._scored = library.Counter("rows_scored", "Rows that were scored.", **own)
        self._sent = library.Counter("sent_bytes", "Bytes of all messages sent.", **own)
        self._seconds = library.Histogram("request_seconds", "Seconds of requests that were answered.", **own)
        library.Gauge("conversations", "Conversations that go on.", **own).set_function(
            lambda: float(0 if self._server is None else self._server.conversations)
        )
        library.Gauge("answering", "1 while a request is being answered.", **own).set_function(
            lambda: float(self._server is not None and self._server.answering)
        )
        library.Gauge("certificate_expiry_timestamp_seconds", "When its certificate ends.", **own).set(expires)
        try:
            self._http = ThreadingHTTPServer(split_address("--monitor", address), _handler(self))
        except (OSError, ValueError) as cause:
            raise ConfigError(f"--monitor: a free host:port of this machine was expected, {address}: {cause}") from None

    def shifts(self, found: Sequence[Drift]) -> None:
        """Show how far the columns of the rows that are served have drifted from the training's."""
        self._drift = list(found)
        for name, words in (("psi", "Population stability index"), ("missing", "Share of rows without a value")):
            gauge = self._library.Gauge(f"drift_{name}", f"{words} of an own column.", ["column"], **self._own)
            for each in found:
                gauge.labels(each.column).set(getattr(each, name))
        shifted = self._library.Gauge("drift_shifted_columns", "Own columns that have shifted.", **self._own)
        shifted.set(sum(each.shifted for each in found))

    def watch(self, server: Server) -> None:
        """Says whose state is shown."""
        self._server = server
        code_policy = server.served.code_policy
        codes = 0 if code_policy is None else code_policy.most
        self._gives = {"ids a request at most": server.served.most, "reason codes a row": codes}

    def count(self, ended: RequestOutcome) -> None:
        """Count a request that is over, with its outcome, bytes and seconds."""
        self._last = ended
        self._requests.labels(ended.outcome).inc()
        self._sent.inc(ended.sent)
        if ended.answered is not None:
            self._asked.inc(ended.answered.asked)
            self._scored.inc(ended.answered.scored)
            self._seconds.observe(ended.seconds)

    def health(self) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return what /health says: status 503 before the party serves and once its certificate has ended, as peers
        refuse it then."""
        valid = time.time() < self._expires
        up = self._server is not None and valid
        state = {
            "status": "ok" if up else "down",
            "party": self._party,
            "answering": self._server is not None and self._server.answering,
            "certificate": "valid" if valid else "ended",
            "last": None if self._last is None else self._last.outcome,
        }
        return HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE, state

    def metrics(self) -> bytes:
        """Return what /metrics says, in the format of Prometheus."""
        return self._library.generate_latest(self._registry)

    def page(self) -> str:
        """Return the state as a page for a browser, its figures those of /metrics."""
        _, state = self.health()
        shifted = [each.column for each in self._drift if each.shifted]
        ends = datetime.fromtimestamp(self._expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
        requests: dict[str, html.Cell] = {
            f"requests {each}": self._figure("requests_total", outcome=each) for each in OUTCOMES
        }
        counts: dict[str, html.Cell] = {
            "ids asked about": self._figure("ids_asked_total"),
            "rows scored": self._figure("rows_scored_total"),
            "bytes sent": self._figure("sent_bytes_total"),
            "last request": state["last"],
        }
        body = [
            f"<h1>{html.escape(self._party)} serves</h1>",
            f'<p class="soft">securevfl {__version__}; counts since it started, never an id. As JSON: /health; for '
            "Prometheus: /metrics.</p>",
            html.section("State", html.facts({"status": state["status"], "certificate ends": ends} | self._gives)),
            html.section("Requests", html.facts(requests | counts)),
        ]
        if self._drift:
            said = f"Shifted: {', '.join(shifted)}." if shifted else "No column has shifted."
            table = html.table(DRIFT_HEADS, rows(self._drift))
            body.append(html.section("Drift of the rows served", f"<p>{html.escape(said)}</p>", table))
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
        """Three pages to read; everything else is not there."""

        timeout = 10  # seconds for a caller to say what it wants

        def do_GET(self) -> None:
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain", b"/, /health and /metrics are here\n"
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
            """Says nothing: the log is for what happens between parties."""

    return Handler
