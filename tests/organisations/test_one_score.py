"""One request for scores: one result type, the job is not read again, and each id is converted once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto import identifiers
from securevfl.crypto.identifiers import CanonicalId, canonical_id
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations.scoring import ScoreClient, ServedTable, serve_requests
from securevfl.protocols.joint_prediction import ScoreResult
from securevfl.runtime.clock import WallClock
from securevfl.runtime.party_threads import run_threads
from securevfl.training.new_rows import IndexedRows
from tests.builders import make_job, random_parties

ROWS = 240


def indexed(party: vfl.Party) -> IndexedRows:
    return IndexedRows(party.name, [f"row {k}" for k in range(len(party))], np.asarray(party.X[:]))


def test_a_warm_request_parses_no_job_and_each_id_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties = random_parties(2, ROWS, ids=True)
    run = vfl.simulate(make_job(), parties)
    calls: Counter[str] = Counter()
    counts = {"on": False}

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            if counts["on"] and threading.current_thread().name == "bank":
                calls[name] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(identifiers, "_canonical")
    count(vfl.Job, "__init__")
    tables = {party.name: indexed(party) for party in parties}
    ledgers = {party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in parties}

    def bank(channel: Any) -> list[ScoreResult]:
        client = ScoreClient(run.parts["bank"], channel, ledgers["bank"])
        results = [client.ask(tables["bank"].ids[:2], tables["bank"].X[:2])]
        counts["on"] = True
        key = canonical_id(tables["bank"].ids[2])  # as a gateway does when the request arrives
        results.append(client.ask([key], tables["bank"].X[2:3]))
        counts["on"] = False
        results.append(client.ask(["row 3", "of nobody"], tables["bank"].X[3:5]))
        client.end()
        return results

    def shop(channel: Any) -> None:
        for _ in serve_requests(run.parts["shop"], ServedTable(tables["shop"], 10), channel, ledgers["shop"]):
            pass

    results = run_threads({"bank": bank, "shop": shop}, WallClock)["bank"]
    assert all(type(result) is ScoreResult for result in results)
    assert [result.states for result in results] == [["scored"] * 2, ["scored"], ["scored", "unknown"]]
    assert calls == {"_canonical": 1}
    f = run.decision({party.name: party.X[:4] for party in parties})
    np.testing.assert_allclose(np.concatenate([results[0].f, results[1].f, results[2].f[:1]]), f)


@pytest.mark.parametrize("value", [7, 7.0, "7", b"\xff\xfe", "a b"])
def test_a_canonical_id_stays_as_it_is(value: Any) -> None:
    once = canonical_id(value)
    assert type(once) is CanonicalId
    assert canonical_id(once) is once
