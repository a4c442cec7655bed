"""Trees between organisations: preprocessing, training, and scores of new rows in a session and from a service."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.families.state import State
from securevfl.organisations.join import join
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import predict_with
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.prepare import prepare
from securevfl.organisations.scoring import score_rows
from securevfl.organisations.serve import Server
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows, rows_of_array
from tests.transport.processes import at_each

CANCER_PARTIES = vfl.datasets.breast_cancer(2)
LINE: dict[str, Any] = {"timeout": 20, "patience": 5}
LEVEL = 0.5  # distance of the levels of new rows' scores, each of which is rounded at random
NEW = 1e-6  # change that makes training rows count as new ones


def held(part: ModelPart, rows: slice) -> IndexedRows:
    party = next(candidate for candidate in CANCER_PARTIES if candidate.name == part.name)
    ids = [f"served {row}" for row in range(rows.start, rows.stop)]
    return IndexedRows.of(part.name, rows_of_array(part, party.X[rows] + NEW, ids))


@pytest.mark.long
def test_trees_are_prepared_trained_asked_and_served(
    meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same trees are used in preprocessing, in training, in the saved part, and for new rows."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    protocol = vfl.Protocol(shares=vfl.Shares())
    job = vfl.Job(
        model=vfl.Trees(trees=4, depth=2),
        protocol=protocol,
        test_fraction=0.2,
        epochs=10,
        accepts=("small_metrics", "scores"),
    )
    meeting = meet(2, None, job)
    at_each(
        meeting,
        lambda party, kit: prepare(
            job, party, PeerSettings.of(kit / "peers.toml", **LINE), preprocessing=kit / "ahead"
        ),
    )
    assert len([*tmp_path.rglob("chunk-*.ready")]) == 2
    files = {name: next((meeting.kit(name) / "ahead").rglob("inputs.json")) for name in ("bank", "shop")}
    drawn = {name: State.read(json.loads(file.read_text())) for name, file in files.items()}

    generated: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(OfflinePhase, "generate", lambda *arguments: generated.append(arguments))
        ledgers = {name: DisclosureLedger(tmp_path / f"{name}.ledger", name) for name in files}

        def train(party: vfl.Party, kit: Path) -> ModelPart:
            trained = join(
                job, party, kit / "peers.toml", preprocessing=kit / "ahead", ledger=ledgers[party.name].path, **LINE
            )
            assert isinstance(trained, ModelPart)
            return trained

        parts = at_each(meeting, train)
    assert not generated
    cosines = parts["shop"].state["inputs"]["cosines"]
    np.testing.assert_array_equal(cosines["directions"], drawn["shop"]["cosines"]["directions"])
    for name, part in parts.items():
        for key in ("cuts", "columns", "sides", "merged"):
            np.testing.assert_array_equal(part.state["inputs"]["forest"][key], drawn[name]["forest"][key])
    assert parts["bank"].metrics["auc"] > 0.97

    expected = vfl.Run(job, parts).decision({party.name: party.X[:60] + NEW for party in CANCER_PARTIES})

    def ask(party: vfl.Party, kit: Path) -> Any:
        ids, ledger_path = [f"new {row}" for row in range(30)], ledgers[party.name].path
        return predict_with(
            parts[party.name], party.X[:30] + NEW, kit / "peers.toml", ids=ids, ledger=ledger_path, **LINE
        )

    scored = at_each(meeting, ask)
    assert scored["shop"] is None
    np.testing.assert_allclose(scored["bank"].decision, expected[:30], atol=2 * LEVEL)

    for kind in ("scores", "ids"):
        ledgers["shop"].set_limit(kind, Limit(10_000))
    ended: list[Any] = []
    venue = PeerSettings.of(meeting.kit("shop") / "peers.toml", **LINE)
    indexed = held(parts["shop"], slice(30, 60))
    server = Server(parts["shop"], indexed, venue, ledger=ledgers["shop"], on_request=ended.append)
    serving = threading.Thread(target=server.run, args=(lambda: bool(ended),), daemon=True)
    serving.start()
    served: dict[str, float] = {}
    answered = score_rows(
        parts["bank"],
        held(parts["bank"], slice(40, 60)),
        PeerSettings.of(meeting.kit("bank") / "peers.toml", **LINE),
        on_block=lambda ids, block: served.update(zip(ids or [], block.decision[:, 0].tolist(), strict=True)),
        ledger=ledgers["bank"],
    )
    serving.join(240)
    assert not serving.is_alive()
    assert (answered, ended[0].outcome) == (ScoreCounts(20, 20), "answered")
    in_order = [served[f"served {row}"] for row in range(40, 60)]
    np.testing.assert_allclose(in_order, expected[40:60, 0], atol=2 * LEVEL)
