"""`securevfl score --http`: many applications send requests in JSON, and rows are requested
from the other party in blocks.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError
from securevfl.organisations.http_api import application
from securevfl.organisations.http_server import HttpAddress
from tests.builders import raises_code
from tests.described_http import checks_replies
from tests.forked import Forked
from tests.transport.test_serve import limits

TOKEN = "a token of an application"


def command(*words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "securevfl.cli.main", *words]
    return Forked(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_up(url: str, *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while True:
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)


@pytest.mark.long
def test_applications_are_answered_in_json_many_at_once(meet: Any, running: list[Any]) -> None:
    """Cases: every state of a row, wrong tokens and bodies, and no id in a log or a metric
    (real processes, mutual TLS).
    """
    meeting, port = meet(2), meet.free_port()
    bank, shop = vfl.datasets.breast_cancer(2)
    run = vfl.simulate(meeting.job, [bank, shop])
    for party in (bank, shop):
        kit = meeting.kit(party.name)
        run.parts[party.name].save(kit / "part.json")
        rows = zip([f"customer-{row}" for row in range(len(party.X))], party.X.tolist(), strict=True)
        lines = [",".join(["id", *party.columns]), *(",".join([name, *map(repr, values)]) for name, values in rows)]
        (kit / "rows.csv").write_text("\n".join(lines[: 301 if party is shop else 351]))
    limits(DisclosureLedger(meeting.kit("shop") / "shop.ledger", "shop"))
    (meeting.kit("bank") / "token").write_text(TOKEN + "\n")

    def own(name: str) -> list[str]:
        kit = meeting.kit(name)
        files = {"data": "rows.csv", "peers": "peers.toml", "ledger": f"{name}.ledger"}
        return [
            str(kit / "part.json"),
            *(word for key, file in files.items() for word in (f"--{key}", str(kit / file))),
        ]

    serving = command("serve", *own("shop"))
    at = [
        "--patience",
        "5",
        "--http",
        f"127.0.0.1:{port}",
        "--http-token",
        str(meeting.kit("bank") / "token"),
        "--verbose",
    ]
    gateway = command("score", *own("bank"), *at)
    running += [serving, gateway]
    url = f"http://127.0.0.1:{port}"
    until_up(url, serving, gateway)
    expected = run.predict_proba({party.name: party.X for party in (bank, shop)})[:, 1]

    seen = set[tuple[str, int]]()
    checks = checks_replies(httpx.get(f"{url}/openapi.json").json(), seen)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, event_hooks={"response": [checks]}) as client:

        def one(row: int) -> dict[str, Any]:
            answer = client.post("/v1/scores", json={"rows": [{"id": f"customer-{row}"}]})
            assert answer.status_code == 200, answer.text
            return dict(answer.json()["scores"][0])

        with ThreadPoolExecutor(20) as pool:
            answers_many = list(pool.map(one, [*range(100), *range(50)]))
        assert [answer["id"] for answer in answers_many] == [f"customer-{row}" for row in [*range(100), *range(50)]]
        np.testing.assert_allclose([answer["probability"] for answer in answers_many[:100]], expected[:100], atol=1e-9)
        repeated = [answer["probability"] for answer in answers_many[100:]]
        np.testing.assert_allclose(repeated, [answer["probability"] for answer in answers_many[:50]], atol=1e-9)
        brought = dict(zip(bank.columns, bank.X[7].tolist(), strict=True))
        rows: list[Any] = [{"id": "customer-8"}, {"id": "customer-320"}, {"id": "customer-999"}]
        rows += [{"id": "customer-7", "columns": brought}, {"id": "customer-8"}]
        answers = client.post("/v1/scores", json={"rows": rows}).json()["scores"]
        assert [answer["state"] for answer in answers] == ["scored", "unknown", "no_columns", "scored", "scored"]
        assert answers[3]["probability"] == pytest.approx(expected[7])
        wrong: list[Any] = [{}, {"rows": []}, {"rows": [{"id": 1.5}]}, {"rows": [{"id": "a", "columns": {"b": 1}}]}, []]
        assert {client.post("/v1/scores", json=request).status_code for request in wrong} == {422}
        assert client.post("/v1/scores", content=b"[" * 2_000_000).status_code == 413
        assert client.get("/v1/scores?id=1").status_code == 405
        assert httpx.post(f"{url}/v1/scores", json={"rows": [{"id": "customer-1"}]}).status_code == 401
        metrics = client.get("/metrics").text
        blocks = next(
            float(line.split()[1]) for line in metrics.splitlines() if line.startswith("securevfl_gateway_blocks ")
        )
        assert 2 < blocks < 150
        assert 'securevfl_gateway_rows_total{state="unknown"} 1.0' in metrics
        assert "customer" not in metrics
        serving.send_signal(signal.SIGKILL)
        serving.wait()
        until = time.monotonic() + 120
        while client.get("/health").status_code != 503:
            assert time.monotonic() < until
            time.sleep(0.1)
        refused = client.post("/v1/scores", json={"rows": [{"id": "customer-200"}]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        again = command("serve", *own("shop"))
        running.append(again)
        until_up(url, again, gateway)
        assert one(200)["probability"] == pytest.approx(expected[200])
        scored = {("/v1/scores", status) for status in (200, 413, 422, 503)}
        assert seen >= scored | {("/health", 503), ("/metrics", 200)}
    again.send_signal(signal.SIGTERM)  # with idle sessions of the gateway
    out, log = again.communicate(timeout=120)
    assert again.returncode == 0, log
    assert out.splitlines()[-1].startswith("shop: the service has ended after SIGTERM: 1 request answered, 1 row ")
    assert '"event": "stopped"' in log
    assert "KeyboardInterrupt" not in log
    assert "run the same command" not in log
    gateway.send_signal(signal.SIGTERM)
    out, errors = gateway.communicate(timeout=120)
    assert gateway.returncode == 0, errors
    assert "bank: the gateway has ended after SIGTERM: " in out
    assert "customer" not in out + errors
    assert "Traceback" not in errors


def test_a_caller_that_hangs_up_within_its_request_is_no_error() -> None:
    """It causes neither a line in the error log nor a request about a row."""
    sent = list[dict[str, Any]]()
    came = iter([{"type": "http.request", "body": b'{"ro', "more_body": True}, {"type": "http.disconnect"}])
    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/scores", "query_string": b"", "headers": headers}

    async def receive() -> Any:
        return next(came)

    async def send(message: Any) -> None:
        sent.append(message)

    fake: Any = SimpleNamespace(party="bank", types={}, id_columns=None, connected=True, waiting=0, blocks=0)
    asyncio.run(application(fake, TOKEN)(scope, receive, send))
    assert sent[0]["status"] == 400


def test_beyond_this_machine_it_speaks_tls_or_does_not_start(tmp_path: Path) -> None:
    for address in ("0.0.0.0:8080", "[::]:8080", "bank.example:8080", "10.0.0.7:8080"):
        with raises_code(ConfigError, "SVFL-ADDRESS"):
            HttpAddress(address, TOKEN)
        for half in ({"certificate": tmp_path / "cert.pem"}, {"key": tmp_path / "key.pem"}):
            with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
                HttpAddress(address, TOKEN, **half)
        HttpAddress(address, TOKEN, tmp_path / "cert.pem", tmp_path / "key.pem")
    for address in ("127.0.0.1:8080", "localhost:8080", "[::1]:8080"):
        assert TOKEN not in repr(HttpAddress(address, TOKEN))
        for half in ({"certificate": tmp_path / "cert.pem"}, {"key": tmp_path / "key.pem"}):
            with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
                HttpAddress(address, TOKEN, **half)
    with raises_code(ConfigError, "SVFL-HTTP-TOKEN"):
        HttpAddress("127.0.0.1:8080", "short")
    with raises_code(ConfigError, "SVFL-ADDRESS"):
        HttpAddress("8080", TOKEN)
