"""The slots of a server (sessions at once): a client that waited in vain does not occupy a slot for others."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from securevfl.errors import TransportError
from securevfl.organisations.session_manager import SessionLimits, SessionManager
from tests.builders import raises_code

LINE: Any = object()


@pytest.mark.parametrize("in_vain", [3, 5])
def test_clients_that_waited_in_vain_take_no_place_of_later_ones(in_vain: int) -> None:
    """Each client waits as long as the first one did, and the last one gets the slot that became free."""
    ends = {"first": threading.Event(), "last": threading.Event()}

    def run(session_id: str) -> None:
        manager.add_session(session_id, {"bank": LINE})
        ends[session_id].wait(60)
        manager.remove_session(session_id)

    manager = SessionManager("shop", run, SessionLimits(max_sessions=1, max_waiting=2, max_seconds=0.05))
    assert manager.line_of("first", "bank") is LINE
    for number in range(in_vain):
        started = time.monotonic()
        with raises_code(TransportError, "SVFL-PEER-BUSY"):
            manager.line_of(f"client {number}", "bank")
        # a client that is refused at once would have found all waiting places taken
        assert time.monotonic() - started > 0.04
    ends["first"].set()
    assert manager.wait(60)
    assert manager.line_of("last", "bank") is LINE
    ends["last"].set()
    manager.close()
    assert manager.wait(60)
