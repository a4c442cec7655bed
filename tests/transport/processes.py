"""Run all parties of a training at the same time, each in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import securevfl as vfl
from securevfl.organisations.join import join


def each(meeting: Any, work: Callable[[str], Any]) -> dict[str, Any]:
    """Return what `work` returns or raises at every party, by name."""
    return _at_once({name: (name,) for name in meeting.peers.parties}, work)


def at_each(
    meeting: Any, work: Callable[[vfl.Party, Path], Any], parties: Sequence[vfl.Party] | None = None
) -> dict[str, Any]:
    """Return what `work` returns or raises at these parties with their kits; by default,
    the parties of breast_cancer.
    """
    tables = vfl.datasets.breast_cancer(len(meeting.peers.parties)) if parties is None else parties
    return _at_once({party.name: (party, meeting.kit(party.name)) for party in tables}, work)


def together(meeting: Any, parties: Sequence[vfl.Party] | None = None, **jobs: vfl.Job) -> dict[str, Any]:
    """Return the result or error of `join` at every party, with a separate job if one is given for it."""

    def play(party: vfl.Party, kit: Path) -> Any:
        return join(jobs.get(party.name, meeting.job), party, kit / "peers.toml", timeout=20, patience=5)

    return at_each(meeting, play, parties)


def _at_once(arguments: dict[str, tuple[Any, ...]], work: Callable[..., Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}

    def play(name: str) -> None:
        try:
            results[name] = work(*arguments[name])
        except Exception as error:
            results[name] = error

    roles = [threading.Thread(target=play, args=(name,)) for name in arguments]
    for role in roles:
        role.start()
    for role in roles:
        role.join(240)
        assert not role.is_alive()
    return results
