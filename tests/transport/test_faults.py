"""Parties that are killed, paused or disconnected: the same model, or an error with the
reason at all others, in time.
"""

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from securevfl.errors import STOP_REASONS, SecureVFLError
from securevfl.organisations.kit import write_kit
from securevfl.runtime.abort import Abort
from securevfl.runtime.codec import Frame, decode_frame, encode_frame


def until_round(meeting: Any, done: int, within: float = 240) -> None:
    deadline = time.monotonic() + within
    while f'"round": {done},' not in meeting.log("bank"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("count", "hub", "victim", "blow"),
    [(3, "bank", "shop", signal.SIGKILL), pytest.param(2, None, "shop", signal.SIGSTOP, marks=pytest.mark.slow)],
    ids=["killed", "stalled"],
)
@pytest.mark.long
def test_a_killed_or_stalled_party_ends_the_job(
    meet: Any, running: list[Any], count: int, hub: str | None, victim: str, blow: signal.Signals
) -> None:
    meeting = meet(count, hub, meet.job(epochs=400))
    processes = {name: meeting.spawn(name, timeout=600, patience=2, pause=0.02) for name in meeting.peers.parties}
    running += processes.values()
    until_round(meeting, 3)
    processes[victim].send_signal(blow)
    struck, last_lines = time.monotonic(), list[str]()
    for name, process in processes.items():
        if name != victim:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 1
            last = errors.strip().splitlines()[-1]
            assert last.startswith(("PeerLost: ", "PeerStopped: bank has stopped: "))
            # the party that noticed the loss names the lost party and the time; others receive a stop reason
            assert "has been disconnected" in last or STOP_REASONS["away"] in last
            last_lines.append(last)
            assert not list(meeting.kit(name).glob("*part.json*"))
    assert any(f"{victim} has been disconnected for 2 s" in last for last in last_lines)
    assert time.monotonic() - struck < 200  # and not as long as they would wait for a message


@pytest.fixture
def proxied(meet: Any, benchmarks: None) -> Iterator[Any]:
    """Start bank and shop, where the shop is reached only through a proxy."""
    from proxy import Proxy

    meeting = meet(2, addressed=["shop"], job=meet.job(epochs=60))
    port = int(meeting.peers.address["shop"].split(":")[1])
    meeting.listen = f"127.0.0.1:{meet.free_port()}"
    proxied_peers = meeting.peers.model_copy(update={"address": {"shop": meeting.listen}})
    write_kit(meeting.kit("shop"), "shop", meeting.job, proxied_peers, meeting.folder / "authority")
    meeting.proxy = Proxy(int(meeting.listen.split(":")[1]), port)
    yield meeting
    meeting.proxy.close()


@pytest.mark.long
def test_cuts_and_damage_change_nothing(proxied: Any, running: list[Any]) -> None:
    running += [proxied.spawn(name, pause=0.005) for name in ("bank", "shop")]
    until_round(proxied, 3)
    draw = random.Random(4)
    blows = 0
    while all(process.poll() is None for process in running) and blows < 12:
        if draw.random() < 0.5:
            proxied.proxy.cut()
        else:
            proxied.proxy.garble = True
        blows += 1
        time.sleep(draw.uniform(0.02, 0.2))
    for process in running:
        assert process.wait(240) == 0, process.stderr.read()
    assert blows >= 4
    assert proxied.log("bank").count('"connection interrupted"') >= 1
    proxied.compare()


@pytest.mark.long
def test_a_cut_that_lasts_ends_the_job(proxied: Any, running: list[Any]) -> None:
    running += [proxied.spawn(name, patience=1, pause=0.05) for name in ("bank", "shop")]
    until_round(proxied, 3)
    proxied.proxy.close()
    for process in running:
        _, errors = process.communicate(timeout=240)
        assert "PeerLost" in errors
        assert "has been disconnected for 1 s" in errors


@pytest.mark.long
def test_a_restarted_party_is_told_to_start_anew(meet: Any, running: list[Any]) -> None:
    meeting = meet(2, job=meet.job(epochs=400))
    running += [meeting.spawn(name, patience=60, pause=0.02) for name in ("bank", "shop")]
    until_round(meeting, 3)
    running[1].kill()
    running[1].wait(10)
    running.append(meeting.spawn("shop", patience=60))
    _, errors = running[0].communicate(timeout=240)
    assert "shop was restarted while the other party was running" in errors


def test_fuzzed_frames_are_refused() -> None:
    """Each of 100,000 altered frames leads to a SecureVFLError or to a frame with valid fields."""
    draw = random.Random(6)
    message = Abort("refused")
    good = encode_frame(message, session=b"s" * 16, sender="bank", receiver="shop", subchannel="sum", seq=3)
    refused = 0
    for _ in range(100_000):
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            match draw.randrange(4):
                case 0:
                    data[draw.randrange(len(data))] = draw.randrange(256)
                case 1:
                    del data[draw.randrange(len(data)) + 1 :]
                case 2:
                    data += draw.randbytes(draw.randrange(1, 9))
                case 3:
                    at = draw.randrange(len(data))
                    data[at:at] = draw.randbytes(draw.randrange(1, 5))
        try:
            frame = decode_frame(bytes(data))
        except SecureVFLError:
            refused += 1
        else:
            assert isinstance(frame, Frame)
            assert len(frame.session) == 16
            assert frame.seq >= 0
    assert refused > 50_000
