"""Training on shares between two to four organisations over mutual TLS: preprocessing, interruptions and scores."""

import csv
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.credit.reason_codes import ReasonCodePolicy
from securevfl.data.id_keys import id_digest
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, LeakageError, PartiesError
from securevfl.families.shares import shares_participant
from securevfl.organisations.join import join
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import predict_with
from securevfl.organisations.prepare import prepare
from securevfl.organisations.scoring import score_rows
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.runtime import eventlog
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart
from tests.builders import SHARES_JOB, make_job, raises_code
from tests.forked import Forked
from tests.transport.processes import at_each


def at(kit: Path) -> PeerSettings:
    return PeerSettings.of(kit / "peers.toml", timeout=20, patience=5)


CHUNKED_JOB = SHARES_JOB | {
    "batch_size": 160,
    "epochs": 6,
    "protocol": vfl.Protocol(shares=vfl.Shares(chunk=3)),
    "test_fraction": 0.2,
    "seed": 3,
    "accepts": ("small_metrics", "scores"),
}


def opened(parts: dict[str, ModelPart]) -> Any:
    """Return the weights, which no party has, from the parts of all parties, in the order of the run's parties."""
    lead = next(part for part in parts.values() if part.leads)
    states = {name: parts[name].state for name in lead.parties}
    return np.concatenate(list(whole_weights(vfl.Job.from_dict(lead.job), states, lead.name).values()))


def of_simulate(meeting: Any) -> Any:
    run = vfl.simulate(meeting.job, vfl.datasets.breast_cancer(len(meeting.peers.parties)))
    return opened(run.parts), run.metrics


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        (2, ["shop"]),
        pytest.param(3, ["bank", "telco"], marks=pytest.mark.slow),
        pytest.param(4, [], marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_processes_train_the_model_of_simulate_though_killed(
    meet: Any, running: list[Any], count: int, kills: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    meeting = meet(count, None, make_job(CHUNKED_JOB))
    for killed in kills[:1]:
        meeting.hold(killed, 4)
    processes = {name: meeting.spawn(name, pause=0.02, every=2) for name in meeting.peers.parties}
    running += processes.values()
    for number, killed in enumerate(kills, 1):
        meeting.kill(processes[killed], killed, 4 * number)
        for following in kills[number : number + 1]:
            meeting.hold(following, 4 * number + 4)
        processes[killed] = meeting.spawn(killed, pause=0.02, every=2)
        running.append(processes[killed])
    for process in processes.values():
        assert process.wait(240) == 0, process.stderr.read()
    assert ("resumed" in meeting.log("bank")) == bool(kills)
    parts = {name: ModelPart.load(meeting.kit(name) / "part.json") for name in meeting.peers.parties}
    theta, metrics = of_simulate(meeting)
    np.testing.assert_allclose(opened(parts), theta, atol=0.08)
    assert parts["bank"].metrics["auc"] == pytest.approx(metrics["auc"], abs=0.01)


@pytest.fixture
def prepared(meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    meeting = meet(2, None, make_job(CHUNKED_JOB))
    results = at_each(
        meeting,
        lambda party, kit: prepare(meeting.job, party, at(kit), preprocessing=kit / "ahead"),
    )
    assert results == {"bank": None, "shop": None}
    return meeting


def trained(meeting: Any, **keys: Any) -> dict[str, Any]:
    return at_each(
        meeting,
        lambda party, kit: join(
            meeting.job, party, kit / "peers.toml", preprocessing=kit / "ahead", timeout=20, patience=5, **keys
        ),
    )


@pytest.mark.long
def test_what_was_prepared_is_gone_through_and_gone(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generated = []
    monkeypatch.setattr(
        "securevfl.protocols.shares.offline_phase.OfflinePhase.generate", lambda *_: generated.append(1)
    )
    parts = trained(prepared)
    assert not generated
    assert {type(part) for part in parts.values()} == {ModelPart}
    monkeypatch.undo()
    theta, _ = of_simulate(prepared)
    np.testing.assert_allclose(opened(parts), theta, atol=0.08)
    assert not [*prepared.folder.glob("*/ahead/*/chunk-*")]


@pytest.mark.long
def test_a_party_without_what_it_prepared_has_all_make_it_anew(prepared: Any) -> None:
    for path in (prepared.kit("shop") / "ahead").glob("*/chunk-9.ready"):
        path.unlink()
    parts = trained(prepared)
    theta, _ = of_simulate(prepared)
    np.testing.assert_allclose(opened(parts), theta, atol=0.08)


@pytest.mark.long
def test_a_training_generates_what_prepare_left_out(meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The six epochs of three chunks have 455 x 6 rows of 62 bytes or more: half of them fit, thus one chunk."""
    monkeypatch.setattr(shares_participant, "DiskStore", partial(DiskStore, limit=455 * 6 * 62 // 2))
    log = tmp_path / "log"
    handler = eventlog.write_to(log)
    meeting = meet(2, None, make_job(CHUNKED_JOB, protocol=vfl.Protocol(shares=vfl.Shares(chunk=2))))
    rounds: dict[str, list[int]] = {"bank": [], "shop": []}
    for _ in range(2):  # the second time, the folder contains chunks
        results = at_each(
            meeting,
            lambda party, kit: prepare(
                meeting.job,
                party,
                at(kit),
                preprocessing=kit / "ahead",
                on_round=lambda done, of: rounds[party.name].append(done),
            ),
        )
        assert results == {"bank": None, "shop": None}
    handler.close()
    eventlog.LOGGER.removeHandler(handler)
    assert rounds["bank"] == rounds["shop"] == rounds["bank"][:1] * 2
    assert log.read_text().count('"preprocessing limited"') == 4
    parts = trained(meeting)
    theta, _ = of_simulate(meeting)
    np.testing.assert_allclose(opened(parts), theta, atol=0.08)
    assert not [*meeting.folder.glob("*/ahead/*/chunk-*")]


@pytest.mark.long
@pytest.mark.parametrize("on_disk", ["bank", "shop"])
def test_one_party_alone_may_store_chunks_on_disk(meet: Any, on_disk: str) -> None:
    """Transfers are then generated during the training, and no later session finds a chunk that lacks them."""
    meeting = meet(2, None, make_job(CHUNKED_JOB))

    def train(party: vfl.Party, kit: Path) -> ModelPart:
        folder = kit / "ahead" if party.name == on_disk else None
        part = join(meeting.job, party, kit / "peers.toml", preprocessing=folder, timeout=20, patience=5)
        assert isinstance(part, ModelPart)
        return part

    parts = at_each(meeting, train)
    theta, _ = of_simulate(meeting)
    np.testing.assert_allclose(opened(parts), theta, atol=0.08)
    assert not [*meeting.folder.glob("*/ahead/*/chunk-*")]


def test_a_job_without_work_ahead_has_nothing_to_prepare(meet: Any) -> None:
    meeting = meet(2)
    results = at_each(
        meeting,
        lambda party, kit: prepare(meeting.job, party, at(kit), preprocessing=kit / "a"),
    )
    assert any(isinstance(error, ConfigError) and "no offline phase" in str(error) for error in results.values())


def test_scores_between_organisations_are_limited_and_logged(meet: Any, tmp_path: Path) -> None:
    opened = vfl.Protocol(shares=vfl.Shares(chunk=3, open_weights=("shop",)))
    meeting = meet(2, None, make_job(CHUNKED_JOB, protocol=opened, reason_codes=2, accepts=("small_metrics",)))
    ledgers = {name: tmp_path / f"{name}.ledger" for name in ("bank", "shop")}
    log = tmp_path / "log"
    handler = eventlog.write_to(log)
    parts = at_each(
        meeting,
        lambda party, kit: join(
            meeting.job, party, kit / "peers.toml", ledger=ledgers[party.name], timeout=20, patience=5
        ),
    )
    assert log.read_text().count('"metrics disclosed"') == 1  # the held-out rows
    tables = {party.name: party for party in vfl.datasets.breast_cancer(2)}
    trained_on = meeting.job.schedule(tables["bank"].register).train

    def ask(rows: Any, shift: float = 0.0, *, ids: Any = None, old: bool = False, k: int = 0) -> dict[str, Any]:
        def predict(party: vfl.Party, kit: Path) -> Any:
            X = tables[party.name].X[rows] + (shift if party.name == "bank" else 0.0 if old else 1e-6)
            row_ids = [f"new {row}" for row in rows] if ids is None else ids
            code_policy = (
                ReasonCodePolicy(k, {column: column for column in party.columns})
                if k and party.name == "shop"
                else None
            )
            keys: dict[str, Any] = {"ledger": ledgers[party.name], "timeout": 20, "patience": 5}
            return predict_with(parts[party.name], X, kit / "peers.toml", ids=row_ids, code_policy=code_policy, **keys)

        return at_each(meeting, predict)

    rows = list(range(40))
    scored = ask(rows)
    assert scored["shop"] is None
    # scores are rounded at random, so each of the four rows of class 1 may get 0; one row is predicted wrongly
    assert (scored["bank"].label == tables["bank"].y[rows]).mean() > 0.85
    assert log.read_text().count('"rows admitted"') == 1
    parts_of = ask([*rows[30:], *range(100, 110)])  # rows that were scored before, among new ones
    np.testing.assert_array_equal(parts_of["bank"].decision[:10], scored["bank"].decision[30:])
    handler.close()
    eventlog.LOGGER.removeHandler(handler)
    seen = ask(trained_on[:3], ids=tables["bank"].ids[trained_on[:3]].tolist())
    renamed = ask(trained_on[:100], ids=[f"0{row}" for row in range(100)], old=True)
    assert isinstance(renamed["shop"], LeakageError)
    for refused in (ask(rows, 1.0), seen):
        assert not len(refused["bank"].decision)
    again = ask(rows)
    np.testing.assert_array_equal(again["bank"].decision, scored["bank"].decision)
    coded = ask(range(40, 60), k=2)
    assert {len(row_codes) for row_codes in coded["bank"].reasons["shop"]} == {2}
    noted = ScoreLedger(ledgers["shop"])
    bits = noted.disclosed_bits([id_digest("shop", f"new {row}") for row in range(40, 60)])
    assert [codes for _, codes in bits] == pytest.approx([np.log2(15 * 14)] * 20)
    spent = [id_digest("shop", f"new {row}") for row in (42, 45)]  # their bits do not allow further codes
    assert noted.admit_codes("another run", spent, np.ones((2, 15)), bits=1e9).all()
    barred = ask(range(40, 50), k=2)["bank"]
    np.testing.assert_array_equal(barred.decision, np.delete(coded["bank"].decision[:10], [2, 5], axis=0))
    assert len(barred.reasons["shop"]) == 8
    with raises_code(ConfigError, "SVFL-MODEL-NO-WEIGHTS"):
        ReasonCodePolicy(1, {column: column for column in tables["bank"].columns}).check(parts["bank"])
    without = at_each(
        meeting,
        lambda party, kit: predict_with(
            parts[party.name], party.X[:5], kit / "peers.toml", ledger=ledgers[party.name], timeout=20, patience=5
        ),
    )
    assert any("the rows have no ids" in str(error) for error in without.values())


def test_scores_go_to_the_party_that_the_job_names(meet: Any, tmp_path: Path) -> None:
    """Shop requests scores and does not know the classes' names; the bank's ledger counts them."""
    meeting = meet(3, None, make_job(CHUNKED_JOB, protocol=vfl.Protocol(shares=vfl.Shares(chunk=6, scores_to="telco"))))
    ledgers = {name: tmp_path / f"{name}.ledger" for name in meeting.peers.parties}
    parts = at_each(
        meeting,
        lambda party, kit: join(
            meeting.job, party, kit / "peers.toml", ledger=ledgers[party.name], timeout=20, patience=5
        ),
    )

    def ask(party: vfl.Party, kit: Path) -> Any:
        ids = [f"new {row}" for row in range(60)]
        arguments = parts[party.name], party.X[:60] + 1e-6, kit / "peers.toml"
        return predict_with(*arguments, ids=ids, ledger=ledgers[party.name], timeout=20, patience=5)

    scored = at_each(meeting, ask)
    assert scored["bank"] is None
    assert scored["shop"] is None
    labels = vfl.datasets.breast_cancer(3)[0].y
    assert labels is not None
    right = scored["telco"].label == (labels[:60] == labels.max())
    assert right.mean() > 0.9
    np.testing.assert_array_equal(scored["telco"].classes, [0, 1])
    refused = at_each(meeting, lambda party, kit: ask(party.take(np.arange(569)[::-1]), kit))
    assert not len(refused["telco"].label)  # the same ids with other columns
    with raises_code(PartiesError, "SVFL-PARTIES-ROLE", party="bank"):
        score_rows(parts["bank"], None, at(meeting.kit("bank")), on_block=print)  # type: ignore[arg-type]


def test_a_model_of_rows_without_ids_scores_no_row(meet: Any, tmp_path: Path) -> None:
    meeting = meet(2, None, make_job(CHUNKED_JOB))
    ledgers = {name: tmp_path / f"{name}.ledger" for name in meeting.peers.parties}

    def train(party: vfl.Party, kit: Path) -> Any:
        without_ids = vfl.Party(party.name, party.X, party.y, aligned=True)
        return join(meeting.job, without_ids, kit / "peers.toml", ledger=ledgers[party.name], timeout=20, patience=5)

    parts = at_each(meeting, train)

    def ask(party: vfl.Party, kit: Path) -> Any:
        settings = {"ids": party.ids, "ledger": ledgers[party.name], "timeout": 20, "patience": 5}
        return predict_with(parts[party.name], party.X, kit / "peers.toml", **settings)

    assert any("trained on a table without ids" in str(error) for error in at_each(meeting, ask).values())


def test_a_run_cut_before_its_last_state_resumes_to_equal_scores(tmp_path: Path) -> None:
    """After a crash between the scores of held-out rows and the storage of the part, the same request is repeated."""
    job, parties = make_job(CHUNKED_JOB), vfl.datasets.breast_cancer(2)
    states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=5) for party in parties}
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    finish = Checkpoints.finish
    try:
        Checkpoints.finish = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            vfl.simulate(job, parties, checkpoints=states, ledgers=ledgers)
    finally:
        Checkpoints.finish = finish  # type: ignore[method-assign]
    run = vfl.simulate(job, parties, checkpoints=states, ledgers=ledgers)
    assert run.metrics["auc"] > 0.97


@pytest.mark.long
def test_the_commands_prepare_train_and_score(meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    meeting = meet(2, None, make_job(CHUNKED_JOB))
    for party in vfl.datasets.breast_cancer(2):
        columns = {"id": party.ids} | ({} if party.y is None else {"y": party.y})
        columns |= dict(zip(party.columns, party.X.T, strict=True))
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (tmp_path / f"{party.name}.csv").write_text("\n".join(lines))
        new = [lines[0], *(f"new{line}1" for line in lines[1:31])]  # a digit more: no row of the training
        (tmp_path / f"{party.name}-new.csv").write_text("\n".join(new))

    def both(*line: str, data: str, accept: Sequence[str] = (), ends: int = 0) -> list[tuple[str, str]]:
        processes = []
        for number, name in enumerate(("bank", "shop")):
            named = [*(part.format(name) for part in line), "--data", str(tmp_path / data.format(name))]
            named += ["--accept", accept[number]] if accept else []
            named += ["--points", "600:50:20"] if line[0] == "predict" and name == "bank" else []
            command = [sys.executable, "-m", "securevfl.cli.main", *named, "--peers", f"{meeting.kit(name)}/peers.toml"]
            processes.append(Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=240) for process in processes]
        assert [process.returncode for process in processes] == [ends, ends], outputs
        return outputs

    job = str(meeting.kit("bank") / "job.toml")
    outputs = both("prepare", job, "--party", "{}", data="{}.csv")
    assert "the precomputed random numbers of shop are in" in outputs[1][0]
    assert len([*tmp_path.glob("*.csv.ahead/*/chunk-*.ready")]) == 4
    sheets = [error for _, error in both("join", job, "--party", "{}", data="{}.csv", ends=2)]
    assert all("secret shares" in sheet for sheet in sheets)
    accept = [sheet.rsplit("--accept ", 1)[1].split()[0] for sheet in sheets]
    outputs = both("join", job, "--party", "{}", data="{}.csv", accept=accept)
    assert re.search(r"^AUC +0\.99", outputs[0][0], re.M)
    assert "held-out rows" in outputs[0][0]
    assert not [*tmp_path.glob("*.csv.ahead/*/chunk-*")]
    outputs = both("predict", str(tmp_path / "{}.model.json"), data="{}-new.csv")
    rows = list(csv.DictReader(io.StringIO(outputs[0][0])))
    assert len(rows) == 30
    p, points = (np.array([float(row[name]) for row in rows]) for name in ("probability", "points"))
    f = np.log(p / (1 - p))
    np.testing.assert_allclose(points, 600 - 20 / np.log(2) * (f + np.log(50)), atol=0.01)
    size = meeting.job.protocol.shares.score_quantizer(meeting.job.model.loss.spacing).size
    np.testing.assert_allclose(f / size - 0.5, np.rint(f / size - 0.5), atol=1e-6)  # scores are at levels
    assert "30 rows predicted; only bank receives the scores" in outputs[1][0]
