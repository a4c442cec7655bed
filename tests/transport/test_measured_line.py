"""`securevfl line` in real processes measures the link between them; peers must not misuse it."""

import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from securevfl.errors import PartiesError, ProtocolError, TransportError
from securevfl.organisations import line_measurement
from securevfl.organisations.bare_round_trip import round_trips
from securevfl.organisations.line_measurement import (
    MeasuredLine,
    Probe,
    ProbeEcho,
    ProbeResult,
    RoundTripTimes,
    measure_lines,
    slowest,
)
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads
from securevfl.transport.endpoint import Endpoint
from securevfl.transport.peers import Peers
from securevfl.transport.tls import Credentials
from tests.builders import raises_code
from tests.forked import Forked

PEERS = Peers(active="bank", passives=("shop",), address={"bank": "localhost:1", "shop": "localhost:2"})


def measuring(meeting: Any, party: str, *options: str) -> "subprocess.Popen[str]":
    """The command of this party."""
    arguments = [
        "line",
        "--party",
        party,
        "--peers",
        str(meeting.kit(party) / "peers.toml"),
        "--timeout",
        "60",
        *options,
    ]
    return Forked(
        [sys.executable, "-m", "securevfl.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(processes: "list[subprocess.Popen[str]]") -> tuple[dict[str, list[float]], Network]:
    """Mbps, round trip and cost a message of each line, and the network to simulate with: the same at all parties."""
    outputs = []
    for process in processes:
        out, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
        outputs.append(out)
    assert len(set(outputs)) == 1
    rows = re.findall(r"^(\w+ - \w+) +([\d.,e-]+) +([\d.,e-]+) +([\d.,e-]+) *$", outputs[0], re.MULTILINE)
    lines = {name: [float(figure.replace(",", "")) for figure in figures] for name, *figures in rows}
    mbps, rtt, message = re.findall(r"Network\(mbps=(.*), rtt_ms=(.*), message_ms=(.*)\)", outputs[0])[0]
    assert f"--mbps {mbps} --rtt-ms {rtt} --message-ms {message}\n" in outputs[0]
    return lines, Network(float(mbps), float(rtt), float(message))


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.long
def test_a_slow_line_is_found_as_slow_as_it_is(meet: Any, running: list[Any]) -> None:
    from delay import SlowLine

    meeting, seen = meet(2, addressed=["bank"]), meet.free_port()
    real = meeting.peers.address["bank"]
    SlowLine(seen, int(real.split(":")[1]), delay=0.02, rate=40 * 125_000)
    path = meeting.kit("shop") / "peers.toml"
    path.write_text(path.read_text().replace(real, f"127.0.0.1:{seen}"))
    for _ in range(4):  # other programs may use the processor: measured links are then slower, and never faster
        pair = [measuring(meeting, "bank"), measuring(meeting, "shop")]
        running += pair
        lines, network = told(pair)
        assert list(lines) == ["bank - shop"]
        assert network.rtt_ms >= 40
        assert network.mbps < 44
        if network.rtt_ms < 60 and network.mbps > 20 and network.message_ms < 20:
            return
    raise AssertionError(network)


@pytest.mark.slow
def test_three_parties_by_a_hub_find_the_same(meet: Any, running: list[Any]) -> None:
    meeting = meet(3, hub="bank")
    running += [measuring(meeting, name) for name in meeting.peers.parties]
    lines, network = told(running)
    assert list(lines) == ["bank - shop", "bank - telco", "shop - telco"]
    assert all(figure > 0 for figures in lines.values() for figure in figures)
    direct, through = lines["bank - shop"][1], lines["shop - telco"][1]
    assert through == pytest.approx(direct + lines["bank - telco"][1], rel=0.02)  # shown to three digits
    assert network.mbps == pytest.approx(min(figures[0] for figures in lines.values()), rel=0.02)
    assert network.rtt_ms == pytest.approx(through, rel=0.02)


def test_who_is_no_party_is_named(tmp_path: Path) -> None:
    with raises_code(PartiesError, "SVFL-PARTIES-NAME"):
        measure_lines("telco", PeerSettings.of(PEERS, certs=tmp_path))


def test_the_slowest_in_each_figure() -> None:
    networks = [Network(100, 10, 0.5), Network(50, 5, 0.2), Network(90, 15, 0.4)]
    for order in permutations(networks):
        lines = [MeasuredLine(*pair, network) for pair, network in zip(("ab", "ac", "bc"), order, strict=True)]
        assert slowest(lines) == Network(50, 15, 0.5)


def between(
    monkeypatch: pytest.MonkeyPatch, shop: Callable[[Channel], object], reached: float = 1e-9
) -> list[MeasuredLine]:
    """Return the bank's measurement with a shop that deviates; both are in this process."""
    monkeypatch.setattr(line_measurement, "round_trips", lambda *_: [reached] * 40)
    credentials: Any = None
    measured = run_threads(
        {
            "bank": lambda channel: line_measurement._LineMeasurement(channel, PEERS, credentials, None, 1 << 17).run(),
            "shop": shop,
        },
        WallClock,
        timeout=20,
    )
    assert isinstance(measured["bank"], list)
    return measured["bank"]


def answering(change: Callable[[bytes], bytes]) -> Callable[[Channel], None]:
    """A shop that sends something else back."""

    def shop(channel: Channel) -> None:
        channel.recv("bank", RoundTripTimes)
        channel.send("bank", RoundTripTimes({}), permit=permit_sizes(channel, "bank"))
        kinds: tuple[type[Message], ...] = (Probe, ProbeResult)
        while isinstance(message := channel.recv_any(("bank",), kinds)[1], Probe):
            channel.send("bank", ProbeEcho(change(message.data)))

    return shop


def test_what_is_sent_back_must_be_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = between(monkeypatch, answering(lambda data: data))
    assert line.network.message_ms > 0
    with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES", peer="shop"):
        between(monkeypatch, answering(lambda data: data[:-1] + bytes([data[-1] ^ 1])))


@pytest.mark.parametrize("reached", [-1.0, float("nan"), float("inf")])
def test_a_round_trip_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, reached: float) -> None:
    with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES"):
        between(monkeypatch, answering(lambda data: data), reached)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Probe(bytes((1 << 17) + 1)), "SVFL-PROTOCOL-SIZE"),
        (ProbeResult(0.1, 0.1, 1 << 17), "SVFL-PROTOCOL-VALUES"),
        (ProbeResult(0.1, float("inf"), 1 << 17), "SVFL-PROTOCOL-VALUES"),
        (ProbeResult(float("nan"), 1.0, 1 << 17), "SVFL-PROTOCOL-VALUES"),
        (ProbeResult(0.1, 0.2, 0), "SVFL-PROTOCOL-VALUES"),
    ],
    ids=["too large", "no longer", "for ever", "no number", "nothing"],
)
def test_a_measuring_party_refuses_impossible_messages(
    monkeypatch: pytest.MonkeyPatch, message: Message, code: str
) -> None:

    def bank(channel: Channel) -> None:
        channel.send("shop", RoundTripTimes({"shop": 1e-3}), permit=permit_sizes(channel, "shop"))
        channel.recv("shop", RoundTripTimes)
        channel.send("shop", message, permit=permit_sizes(channel, "shop"))
        channel.recv("shop", ProbeEcho)

    credentials: Any = None
    refusing = {
        "bank": bank,
        "shop": lambda channel: line_measurement._LineMeasurement(channel, PEERS, credentials, None, 1 << 17).run(),
    }
    with raises_code(ProtocolError, code, peer="bank"):
        run_threads(refusing, WallClock, timeout=20)


def test_a_round_trip_to_who_is_not_the_peer_is_refused(meet: Any) -> None:
    meeting = meet(2, addressed=["bank"])
    bank, shop = (Credentials(meeting.kit(name), name) for name in ("bank", "shop"))
    where = ("127.0.0.1", int(meeting.peers.address["bank"].split(":")[1]))
    endpoint = Endpoint(bank, meeting.peers, lambda *_: None, lambda *_: None)
    endpoint.start()
    try:
        assert all(0 < seconds < 5 for seconds in round_trips(shop, "bank", where, 5, 5.0))
        with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
            round_trips(shop, "shop", where, 5, 5.0)
    finally:
        endpoint.abandon()
    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        round_trips(shop, "bank", where, 5, 5.0)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0 hello, who is there?\r\n", b"\0\0\0\7\0\0\0\0\0"])
def test_a_server_that_does_not_confirm_is_refused(meet: Any, answer: bytes) -> None:
    meeting = meet(2)
    shop = Credentials(meeting.kit("shop"), "shop")
    folder = meeting.kit("bank")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "bank.pem", folder / "bank.key")

    def serve() -> None:
        line, _ = server.accept()
        with context.wrap_socket(line, server_side=True) as secured:
            secured.recv(100)
            secured.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        with raises_code(TransportError, "SVFL-PEER-AWAY"):
            round_trips(shop, "bank", server.getsockname(), 5, 5.0)
