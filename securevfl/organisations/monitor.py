"""The local status port of a server, a party that answers scoring requests: a page, /health as JSON and /metrics.

/metrics is for Prometheus. The port shows counts, seconds and bytes, but no id and no value of anyone's data. Requests
to it change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from securevfl.base.extras import import_extra
from securevfl.base.version import __version__
from securevfl.display import html
from securevfl.organisations.budgets import budgets_of
from securevfl.organisations.http_endpoints import HttpEndpoint, HttpReply, asgi_application
from securevfl.organisations.serve import Outcome, RequestOutcome, Server
from securevfl.organisations.served_rows import ColumnShifts

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

OUTCOMES: tuple[Outcome, ...] = ("answered", "refused", "failed")
MAX_MONITOR_CONNECTIONS = 32
"""Number of connections to the status port; the service needs the other file descriptors for its clients."""


SHIFT_NOTE = (
    "Rows that the party serves now, compared with the training rows. PSI is the population stability index and KS the "
    "Kolmogorov-Smirnov distance; both are 0 if nothing has changed. p is the probability of such a distance by chance."
)

LIMITS_NOTE = (
    "Each limit holds for all peers together. If nothing is left, the service refuses further requests until the party "
    "raises the limit: securevfl ledger --party NAME --limit KIND=NUMBER."
)


class ServiceHealth(BaseModel):
    """Whether the service answers."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    status: Literal["ok", "down"]
    """"down" before the party serves, and when its certificate has expired."""
    party: str
    """The party."""
    busy: bool
    """Whether the service processes a request at this moment; it is false between requests."""
    certificate: Literal["valid", "expired"]
    """The state of the party's certificate."""
    last: Outcome | None
    """The outcome of the latest request."""


class Monitor:
    """Counts requests, and provides the counts for the status port.

    Args:
        party: name of the party.
        expires: time at which the party's certificate expires, in seconds since 1970.
        clock: returns the present time in seconds since 1970.

    Raises:
        ConfigError: prometheus-client is not installed.
    """

    def __init__(self, party: str, expires: float, clock: Callable[[], float] = time.time) -> None:
        self.party, self._expires, self._clock = party, expires, clock
        self.health_type: type[BaseModel] = ServiceHealth
        self._server: Server | None = None
        self._latest: RequestOutcome | None = None
        self._shifts: ColumnShifts | None = None
        self._limits: dict[str, html.Cell] = {}
        self._library = library = import_extra("prometheus_client", "serve", "--monitor")
        self.registry = library.CollectorRegistry()
        self._options = options = {"registry": self.registry, "namespace": "securevfl"}
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
        library.Gauge("busy", "1 while a request is being processed.", **options).set_function(
            lambda: float(self._server is not None and self._server.busy)
        )
        library.Gauge("certificate_expiry_timestamp_seconds", "Expiry of the certificate.", **options).set(expires)

    def show_shifts(self, shifts: ColumnShifts) -> None:
        """Publish in /metrics how far the columns of the served rows have drifted from those of the training."""
        self._shifts = shifts
        for (name, description), values in shifts.figures.items():
            gauge = self._library.Gauge(f"drift_{name}", f"{description} of a column.", ["column"], **self._options)
            for column, value in values.items():
                gauge.labels(column).set(value)
        shifted = self._library.Gauge(
            "drift_shifted_columns", "Number of columns whose values have shifted since the training.", **self._options
        )
        shifted.set(len(shifts.shifted))

    def watch(self, server: Server) -> None:
        """Show this server's sessions and readiness on the status port from now on."""
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

    def health(self) -> tuple[int, ServiceHealth]:
        """Return the HTTP status and the reply of /health.

        The status is 503 before the party accepts requests, and after its certificate has expired, because peers then
        refuse to connect.
        """
        valid = self._clock() < self._expires
        up = self._server is not None and valid
        state = ServiceHealth(
            status="ok" if up else "down",
            party=self.party,
            busy=self._server is not None and self._server.busy,
            certificate="valid" if valid else "expired",
            last=None if self._latest is None else self._latest.outcome,
        )
        return 200 if up else 503, state

    def page(self) -> str:
        """Return the state as an HTML page with the figures of /metrics."""
        _, state = self.health()
        expires = datetime.fromtimestamp(self._expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
        outcomes = {f"requests {outcome}": self._figure("requests_total", outcome=outcome) for outcome in OUTCOMES}
        counts: dict[str, html.Cell] = {
            "requested ids": self._figure("ids_asked_total"),
            "scored rows": self._figure("rows_scored_total"),
            "bytes sent": self._figure("sent_bytes_total"),
            "latest request": state.last,
        }
        facts = {"certificate": f"{state.certificate}, until {expires}"} | self._limits
        kind = "" if state.status == "ok" else " red"
        finished = ", ".join(f"{count:,} {name.removeprefix('requests ')}" for name, count in outcomes.items())
        status = f"{'Serving' if state.status == 'ok' else 'Not serving'}. Requests: {finished}."
        body = [
            f"<h1>Scoring service of {html.escape(self.party)}</h1>",
            f'<p class="soft">securevfl {__version__}; counts since the start, without ids. As JSON: /health; for '
            "Prometheus: /metrics.</p>",
            f'<div class="verdict{kind}">{html.escape(status)}</div>',
            '<div class="charts">',
            html.section("State", html.facts(facts)),
            html.section("Requests", html.facts({**outcomes, **counts})),
            "</div>",
            *self._ledger_limits(),
        ]
        if self._shifts is not None:
            shifted = self._shifts.shifted
            summary = f"Shifted: {', '.join(shifted)}." if shifted else "No column has shifted."
            rows = self._shifts.rows
            columns = [k for k in range(len(self._shifts.heads)) if any(row[k] != 0 for row in rows)]
            heads = [self._shifts.heads[k] for k in columns]
            cells = [[row[k] for k in columns] for row in rows]
            table = html.table(heads, cells, figures=[k for k, head in enumerate(heads) if head == "p"])
            note = f"<p>{html.escape(summary)}</p><p class='soft'>{html.escape(SHIFT_NOTE)}</p>"
            body.append(html.section("Drift of the served rows", note, table))
        return html.page(f"Scoring service of {self.party}", body)

    def _ledger_limits(self) -> list[str]:
        """Return the section with the limits of the ledger and their unused parts, once a server is watched."""
        if self._server is None:
            return []
        budgets = budgets_of(self._server.ledger)
        rows = [(budget.kind, budget.limit, budget.left, budget.peer or "nobody") for budget in budgets]
        table = html.table(("Kind", "Limit", "Left", "Learned by"), rows, figures=(1, 2), stacked=True)
        return [html.section("Limits of the ledger", table, f"<p class='soft'>{html.escape(LIMITS_NOTE)}</p>")]

    def _figure(self, name: str, **labels: str) -> int:
        """Return the present value of one metric with these labels."""
        return int(self.registry.get_sample_value(f"securevfl_{name}", labels))


def monitor_application(monitor: Monitor) -> Any:
    """Create the ASGI application of a status port.

    Args:
        monitor: the counts that it shows.

    Returns:
        The application.

    Raises:
        ConfigError: starlette or prometheus-client is not installed.
    """
    import_extra("starlette", "serve", "--monitor")
    from starlette.responses import HTMLResponse

    async def page(request: Request) -> Response:
        return HTMLResponse(monitor.page())

    endpoint = HttpEndpoint("/", "The state as a page", page, {200: HttpReply("The page.", media_type="text/html")})
    return asgi_application("securevfl service", monitor, [endpoint])
