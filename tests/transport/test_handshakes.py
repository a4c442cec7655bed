"""Only handshakes that led to no stream within a second count as failed, and a few of them are not reported."""

from __future__ import annotations

import time

from securevfl.transport.handshakes import MIN_FAILED_HANDSHAKES, HandshakeCounter


def counted(begun: int, succeeded: int, *, forgets: int = 0) -> HandshakeCounter:
    """Return a counter after handshakes that are forgotten, and after others of which some have succeeded."""
    counter = HandshakeCounter()
    for _ in range(forgets):
        counter.begin()
    counter.forget()
    for _ in range(begun):
        counter.begin()
    for _ in range(succeeded):
        counter.succeed()
    return counter


def test_handshakes_that_failed_are_counted() -> None:
    few = MIN_FAILED_HANDSHAKES - 1
    cases = [(few, 0, 0), (few + 1, 1, 0), (few + 4, 4, 0), (0, 2, 0), (few, 0, 9), (few + 1, 0, 9), (few + 5, 3, 0)]
    counters = [counted(begun, succeeded, forgets=forgets) for begun, succeeded, forgets in cases]
    expected = [0, 0, 0, 0, 0, few + 1, few + 2]
    deadline = time.monotonic() + 60
    while [counter.count_failed() for counter in counters] != expected:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for failed in (few + 1, 0, 0):  # handshakes that succeed late are counted no more
        counters[-1].succeed()
        assert counters[-1].count_failed() == failed
