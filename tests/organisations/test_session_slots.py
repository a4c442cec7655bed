"""The slots of a server: a client that waits in vain leaves no trace that others would meet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from securevfl.errors import TransportError
from securevfl.organisations import session_manager
from securevfl.organisations.session_manager import SessionLimits, SessionManager
from tests.builders import raises_code

LINE: Any = object()


@pytest.mark.parametrize("in_vain", [0, 1, 2, 5])
def test_clients_that_waited_in_vain_take_no_place_of_later_ones(monkeypatch: pytest.MonkeyPatch, in_vain: int) -> None:
    over, end = threading.Event(), threading.Event()

    def run(session_id: str) -> None:
        manager.add_session(session_id, {"bank": LINE})
        (over if session_id == "first" else end).wait(60)
        manager.remove_session(session_id)

    manager = SessionManager("shop", run, SessionLimits(max_sessions=1, max_waiting=2))
    assert manager.line_of("first", "bank") is LINE
    monkeypatch.setattr(session_manager, "_WAIT", 0.01)
    for number in range(in_vain):
        with raises_code(TransportError, "SVFL-PEER-BUSY"):
            manager.line_of(f"client {number}", "bank")
    monkeypatch.setattr(session_manager, "_WAIT", 60.0)
    threading.Timer(0.2, over.set).start()
    assert manager.line_of("later", "bank") is LINE
    end.set()
    manager.close()
    assert manager.wait(60)
