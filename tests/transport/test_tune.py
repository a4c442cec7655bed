"""A search between organisations: one consent, one sum of losses for each alternative, one model with all metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.data.row_order import write_rows
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import (
    ConfigError,
    ConsentError,
    DivergenceError,
    LeakageError,
    PeerLost,
    PeerStopped,
    ProtocolError,
    SecureVFLError,
    TransportError,
)
from securevfl.families.score_results import Measurement
from securevfl.organisations.compare import exclusive_comparison
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.reserved_measurements import ReservedMeasurements
from securevfl.organisations.search_record import SearchRecord
from securevfl.organisations.tune import CHOSEN, SearchFiles, tune_with
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.training.checkpoint import Checkpoint, Checkpoints
from securevfl.training.evaluation_records import FINAL_EVALUATION, EvaluationFile
from securevfl.training.model_part import ModelPart
from securevfl.training.search_sheet import explain_search
from securevfl.training.tuning_grid import alternative_jobs
from tests.builders import raises_code
from tests.forked import Forked
from tests.training.test_comparison import tables
from tests.transport.processes import at_each

TUNED_JOB = vfl.Job(model=vfl.Logistic(), epochs=6, evaluate_every=0, test_fraction=0.25, seed=2)
GRID = {"l2": (0.1, 1.0), "epochs": (4,)}  # without epochs, a grid of l2 trains for 100 iterations
THREE = GRID | {"l2": (0.01, 0.1, 1.0)}
ROWS = 1600  # 400 held-out rows permit four measurements: three alternatives, and the chosen one
MEASURED = 3  # the two alternatives of GRID, and the chosen one
LINE: dict[str, Any] = {"timeout": 20, "patience": 5}


def measured(party: vfl.Party, ledger: Path) -> int:
    """Return how often the party's held-out rows were measured."""
    return ScoreLedger(ledger).evaluation_count(party.keys_of(TUNED_JOB.schedule(party.register).test))


class Search:
    """The same search at all parties."""

    def __init__(self, meeting: Any, folder: Path, parties: list[vfl.Party], job: vfl.Job = TUNED_JOB) -> None:
        self.meeting, self.folder, self.parties, self.job = meeting, folder, parties, job
        self.sheets: dict[str, list[str]] = {party.name: [] for party in parties}

    def ledger(self, party: vfl.Party) -> Path:
        return self.folder / f"{party.name}.ledger"

    def run(
        self,
        grids: dict[str, Any] | None = None,
        consent: Any = None,
        checkpoints: dict[str, Checkpoints] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        def play(party: vfl.Party, kit: Path) -> Any:
            def ask(sheet: Any) -> None:
                self.sheets[party.name].append(sheet)
                if consent is not None:
                    consent(party.name)

            return tune_with(
                self.job,
                (grids or {}).get(party.name, GRID),
                party,
                PeerSettings.of(kit / "peers.toml", **LINE),
                files=SearchFiles(
                    self.ledger(party),
                    (checkpoints or {}).get(party.name, self.folder / f"{party.name}.states"),
                    self.folder / f"{party.name}.model.json",
                ),
                consent=ask,
                **options,
            )

        return at_each(self.meeting, play, self.parties)


@pytest.fixture
def search(meet: Any, tmp_path: Path) -> Search:
    return Search(meet(2, None, TUNED_JOB), tmp_path, tables(ROWS))


def test_one_consent_one_sum_for_each_alternative_and_one_model(search: Search) -> None:
    grids = {"bank": THREE, "shop": THREE}
    results = search.run(grids)
    bank, shop = results["bank"], results["shop"]
    losses = [item.loss for item in bank.alternatives]
    assert bank.chosen == shop.chosen == bank.alternatives[int(np.argmin(losses))].name
    assert [item.loss for item in shop.alternatives] == [None] * 3
    assert "auc" in bank.part.metrics
    assert not shop.part.metrics
    for party in search.parties:
        part = ModelPart.load(search.folder / f"{party.name}.model.json")
        assert part.parsed_job.digest == bank.job.digest
        assert not [*(search.folder / f"{party.name}.states").glob("*")]  # no checkpoint of any training, and no record
        (sheet,) = search.sheets[party.name]
        assert "trains 3 alternatives" in sheet
        assert "4 measurements" in sheet
        others = [other.name for other in search.parties if not other.active]
        assert f"{others[0]}: AlternativeChoice from bank: plain: which of the agreed alternatives" in " ".join(
            str(sheet).split()
        )
        sizes = {other.name: other.X.shape[1] for other in search.parties if other is not party}
        forecast = explain_search(TUNED_JOB, THREE, [party], others=sizes)
        assert forecast.sheet.digest == sheet.digest
        assert not forecast.refusals
    ledger = DisclosureLedger(search.ledger(search.parties[1]), "shop")
    entries = [entry.disclosure for entry in ledger.read().entries]
    assert len(entries) == 4
    assert 0 < sum(entry.count for entry in entries) <= shop.opened_bits
    assert shop.entered == (f"bank received {sum(entry.count for entry in entries):,} bits about this party's columns",)
    choices = [entry.disclosure for entry in DisclosureLedger(search.ledger(search.parties[0]), "bank").read().entries]
    assert [(entry.kind, entry.group, entry.count) for entry in choices] == [("labels", "verdicts", 2)]
    assert measured(search.parties[1], search.ledger(search.parties[1])) == 4
    assert not [*search.folder.rglob("*.search.json")]
    again = search.run(grids)  # the models exist
    assert all(isinstance(error, ConfigError) for error in again.values())
    for path in search.folder.glob("*.model.json"):
        path.unlink()
    again = search.run(grids)  # the rows have been measured often enough
    assert isinstance(again["shop"], LeakageError)
    assert isinstance(again["bank"], PeerStopped)
    assert measured(search.parties[1], search.ledger(search.parties[1])) == 4


def test_explain_counts_earlier_measurements_of_the_rows(tmp_path: Path) -> None:
    bank, shop = tables(ROWS)
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    columns = {"bank": bank.X.shape[1]}
    assert not explain_search(TUNED_JOB, THREE, [shop], others=columns, ledgers={"shop": ledger}).refusals
    held_out = shop.keys_of(TUNED_JOB.schedule(shop.register).test)
    ledger.record(shop.register, ("earlier", ""), [])
    ScoreLedger(ledger.path).record_evaluation("bank", held_out, me="shop")
    (refusal,) = explain_search(TUNED_JOB, THREE, [shop], others=columns, ledgers={"shop": ledger}).refusals
    assert "at most 4 evaluations" in refusal


def test_a_peer_with_more_alternatives_is_refused(search: Search) -> None:
    results = search.run({"bank": THREE})
    assert all(isinstance(error, ConfigError) for error in results.values()), results
    assert measured(search.parties[1], search.ledger(search.parties[1])) == 0
    assert search.sheets == {"bank": [], "shop": []}


def test_a_refused_consent_counts_nothing(search: Search) -> None:
    def refuse(name: str) -> None:
        if name == "bank":
            raise ConsentError("not agreed")

    results = search.run(consent=refuse)
    assert isinstance(results["bank"], ConsentError)
    assert measured(search.parties[1], search.ledger(search.parties[1])) == 0


def stop_before(count: int) -> Callable[[str], None]:
    """Return a function for `on_model` that stops a party before its training of this number, counted from 0."""
    begun: dict[int, int] = {}

    def on_model(name: str) -> None:
        thread = threading.get_ident()
        begun[thread] = begun.get(thread, -1) + 1
        if begun[thread] == count:
            raise TransportError("stopped here")

    return on_model


@pytest.mark.parametrize("finished", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_interrupted_search_resumes(search: Search, finished: int) -> None:
    stopped = search.run(on_model=stop_before(finished))
    assert all(isinstance(error, TransportError) for error in stopped.values())
    shop = search.parties[1]
    entries = len(DisclosureLedger(search.ledger(shop), "shop").read().entries)
    assert measured(shop, search.ledger(shop)) == MEASURED  # all are counted before the first
    results = search.run()
    assert "auc" in results["bank"].part.metrics, results
    assert [len(sheets) for sheets in search.sheets.values()] == [1, 1]
    assert measured(shop, search.ledger(shop)) == MEASURED
    assert len(DisclosureLedger(search.ledger(shop), "shop").read().entries) == MEASURED
    assert entries == finished


def test_lost_results_are_not_measured_again(search: Search) -> None:
    search.run(on_model=stop_before(2))
    shop = search.parties[1]
    check_refused_after_loss(search, shop)


def check_refused_after_loss(search: Search, shop: vfl.Party) -> None:
    """Check that the shop refuses another measurement if the bank has lost all results but its record of the search."""
    for path in (search.folder / "bank.states").glob("*"):
        if "search" not in path.name:
            path.unlink()
    results = search.run()
    assert isinstance(results["shop"], LeakageError), results
    assert "all measurements that its consent covers" in str(results["shop"])
    assert measured(shop, search.ledger(shop)) == MEASURED


def test_a_restored_record_allows_no_further_measurement(search: Search) -> None:
    """The shop's checkpoints are restored to an earlier moment, and the bank claims to have lost its results."""
    search.run(on_model=stop_before(0))  # the consent is given and everything is counted
    shop = search.parties[1]
    (record,) = (search.folder / "shop.states").glob("*.search.json")
    before = record.read_bytes()
    search.run(on_model=stop_before(2))
    record.write_bytes(before)
    check_refused_after_loss(search, shop)


def test_measurements_are_counted_with_the_record_of_the_search(search: Search) -> None:
    """The shop stops after its consent, before it can write the record; the next run counts each measurement once."""
    shop, states = search.parties[1], search.folder / "shop.states"

    def block(name: str) -> None:
        if name == "shop":
            shutil.rmtree(states, ignore_errors=True)
            states.write_text("a file where the folder should be")

    assert isinstance(search.run(consent=block)["shop"], Exception)
    assert measured(shop, search.ledger(shop)) == 0
    states.unlink()
    results = search.run()
    assert "auc" in results["bank"].part.metrics, results
    assert measured(shop, search.ledger(shop)) == MEASURED


def test_choices_of_searches_add_up_to_the_limit_of_labels(meet: Any, tmp_path: Path) -> None:
    """The same search with other columns of the peer discloses another choice, and the bank's limit counts it."""
    job = TUNED_JOB.model_copy(update={"accepts": ("small_metrics",), "epochs": 4})
    bank, shop = tables(800)
    search, ledger = (
        Search(meet(2, None, job), tmp_path, [bank, shop], job),
        DisclosureLedger(tmp_path / "bank.ledger", "bank"),
    )
    ledger.set_limit("labels", Limit(5))
    for number in (1, 2, 3):
        X = np.random.default_rng(number).normal(size=shop.X.shape)
        search.parties = [bank, vfl.Party("shop", X, ids=shop.ids)]
        forecast = explain_search(job, THREE, search.parties, ledgers={"bank": ledger})
        results = search.run({"bank": THREE, "shop": THREE})
        counted = [entry.disclosure for entry in ledger.counted_for(bank.register)]
        assert [(item.kind, item.learner, item.count) for item in counted] == [("labels", "shop", 2)] * min(2, number)
        for path in tmp_path.glob("*.model.json"):
            path.unlink()
        assert bool(forecast.refusals) == isinstance(results["bank"], LeakageError) == (number == 3), results
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="bank"):
        vfl.tune(job, THREE, search.parties, ledgers={"bank": ledger})


@pytest.mark.parametrize("name", ["bank", pytest.param("shop", marks=pytest.mark.slow)])
def test_a_party_that_stopped_before_saving_gets_its_model(search: Search, name: str) -> None:
    """One party cannot write its model, the other one ends the search; the same command again completes the search."""
    (party,) = (party for party in search.parties if party.name == name)
    model, calls = search.folder / f"{name}.model.json", list[str]()

    def block(alternative: str) -> None:
        calls.append(alternative)
        if "chosen" in alternative:
            model.mkdir(exist_ok=True)

    results = search.run(on_model=block)
    assert isinstance(results[name], Exception)
    model.rmdir()
    first = next(result for result in results.values() if not isinstance(result, Exception))
    for _ in range(2):  # the other party has its model, and does not take part again
        results = search.run()
        assert sum(isinstance(result, ConfigError) for result in results.values()) == 1
        again = results[name]
        assert (again.chosen, again.opened_bits, again.rows) == (first.chosen, first.opened_bits, first.rows)
        assert again.part.run == first.part.run == ModelPart.load(model).run
        assert [item.loss is not None for item in again.alternatives] == [party.active] * 2
        assert bool(again.entered)
    assert [len(sheets) for sheets in search.sheets.values()] == [1, 1]
    shop = search.parties[1]
    assert measured(shop, search.ledger(shop)) == MEASURED


STEEP_JOB = TUNED_JOB.model_copy(update={"optimizer": vfl.FedSGD(lr=0.1), "batch_size": "all", "epochs": 20})


@pytest.mark.parametrize("resumed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_alternative_that_diverges_is_left_out(meet: Any, tmp_path: Path, resumed: bool) -> None:
    grid = {"lr": (1e4, 0.1)}
    search = Search(meet(2, None, STEEP_JOB), tmp_path, tables(ROWS), STEEP_JOB)
    grids = {"bank": grid, "shop": grid}
    if resumed:
        search.run(grids, on_model=stop_before(1))
    results = search.run(grids)
    for result in results.values():
        assert [item.diverged for item in result.alternatives] == [True, False], results
        assert result.chosen == "lr = 0.1"
        assert "diverged" in str(result)
    assert [item.loss is None for item in results["bank"].alternatives] == [True, False]
    shop = search.parties[1]
    entries = [entry.disclosure for entry in DisclosureLedger(search.ledger(shop), "shop").read().entries]
    assert results["shop"].entered == (
        f"bank received {sum(entry.count for entry in entries):,} bits about this party's columns",
    )


def test_a_search_whose_alternatives_all_diverge_chooses_none(meet: Any, tmp_path: Path) -> None:
    grid = {"lr": (1e4, 1e5)}
    search = Search(meet(2, None, STEEP_JOB), tmp_path, tables(ROWS), STEEP_JOB)
    results = search.run({"bank": grid, "shop": grid})
    assert all(isinstance(error, DivergenceError) for error in results.values()), results
    assert not [*tmp_path.glob("*.model.json")]


def test_a_search_with_too_few_rows_is_refused_before_consent(meet: Any, tmp_path: Path) -> None:
    search = Search(meet(2, None, TUNED_JOB), tmp_path, tables(60))
    results = search.run()
    assert all(isinstance(error, ConfigError) for error in results.values()), results
    assert search.sheets == {"bank": [], "shop": []}
    assert measured(search.parties[1], search.ledger(search.parties[1])) == 0
    for search_of_tables in (vfl.tune, explain_search):
        with raises_code(ConfigError, "SVFL-JOB-UNSUPPORTED", rows=15):
            search_of_tables(TUNED_JOB, GRID, search.parties)


def exchanged(party: vfl.Party, change: str) -> vfl.Party:
    """Return the party with a table of other sizes."""
    if change == "classes":
        return vfl.Party(party.name, party.X, np.arange(ROWS) % 3, ids=party.ids)
    if change == "held-out rows":  # without ids, rows are divided by their numbers
        return vfl.Party(party.name, party.X, party.y, aligned=True)
    return vfl.Party(party.name, np.hstack([party.X, party.X[:, :1] ** 2]), party.y, ids=party.ids)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("name", "change"),
    [("bank", "classes"), ("bank", "columns"), ("shop", "columns"), ("bank", "held-out rows")],
)
def test_sizes_of_a_search_stay_those_agreed_on(
    meet: Any, tmp_path: Path, name: str, change: str, resumed: bool
) -> None:
    """One party exchanges its table after the consent; the other one, which has read its sheet, refuses."""
    several = {"model": vfl.OneVsRest(), "protocol": vfl.Protocol(shares=vfl.Shares(scores="none"))}
    job = TUNED_JOB.model_copy(update=several) if change == "classes" else TUNED_JOB
    search = Search(meet(2, None, job), tmp_path, tables(ROWS), job)
    (party,) = (party for party in search.parties if party.name == name)
    (other,) = (party for party in search.parties if party.name != name)
    first, calls = exchanged(party, change), Counter[int]()

    def exchange(model: str) -> None:
        calls[threading.get_ident()] += 1
        if calls.total() == 1 + resumed:
            vars(party).clear()
            vars(party).update(vars(first))
        if resumed and calls.total() <= 2:
            raise TransportError("stopped here")

    results = search.run(on_model=exchange)
    if resumed:
        results = search.run()
    assert isinstance(results[other.name], ProtocolError), results
    assert "other sizes than those that this party agreed to" in str(results[other.name])
    entries = DisclosureLedger(search.ledger(other), other.name).read().entries
    assert not [entry for entry in entries if entry.disclosure.kind == "columns"]


class ClaimingCheckpoints(Checkpoints):
    """Checkpoints of a bank that states a result of each alternative before it is measured, and loses the last one's.

    After the last checkpoint of an alternative the bank stores a loss that it has made up, and joins again: its hello
    then states that it has the result. It reads the pairs of the chosen model, and joins again without having them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "bank")
        self.claimed: set[bytes] = set()
        self.openings: list[float] = []

    def save(self, job: bytes, checkpoint: Checkpoint) -> None:
        super().save(job, checkpoint)
        if checkpoint.over and job not in self.claimed and len(self.claimed) < len(GRID["l2"]):
            self.claimed.add(job)
            time.sleep(1.0)  # the shop stores its last checkpoint too
            self.evaluations(job).store(FINAL_EVALUATION, Measurement({"loss": 0.5 + len(self.claimed)}))
            raise lost_connection()

    def evaluations(self, job: bytes) -> EvaluationFile:
        path, openings = self.folder / f"evaluations of {job.hex()}", self.openings

        class Evaluations(EvaluationFile):
            def store(self, number: int, measurement: Measurement, *decision: Any) -> None:
                if "auc" in measurement.metrics:
                    openings.append(measurement.metrics["auc"])
                    if len(openings) <= len(GRID["l2"]):
                        raise lost_connection()
                super().store(number, measurement, *decision)

        return Evaluations(path)


def lost_connection() -> PeerLost:
    return PeerLost("lost", code="SVFL-PEER-LOST", party="bank")


def test_pairs_are_opened_once_in_a_search(search: Search) -> None:
    """Measurements that the bank skips for some alternatives do not permit further ones of the chosen model."""
    claiming = ClaimingCheckpoints(search.folder / "bank.states")
    results = search.run(checkpoints={"bank": claiming})
    assert len(claiming.claimed) == len(GRID["l2"])
    assert isinstance(results["shop"], LeakageError), results
    assert "all measurements that its consent covers" in str(results["shop"])
    assert len(claiming.openings) == 1
    (sheet,) = search.sheets["shop"]
    entries = DisclosureLedger(search.ledger(search.parties[1]), "shop").read().entries
    stated = int(re.search(r"At most ([\d,]+) bits", str(sheet))[1].replace(",", ""))
    assert sum(entry.disclosure.count for entry in entries) <= stated


@pytest.mark.parametrize("names", [["l2 = 0.1", "l2 = 1", CHOSEN], ["logistic", "bins", "trees"]])
def test_a_training_has_its_own_measurements(names: list[str]) -> None:
    used: list[str] = []
    reserved = ReservedMeasurements("shop", dict.fromkeys(names, 1), lambda name: used.append(name) is None)
    for name in names:
        reserved.of(name)()
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
            reserved.of(name)()
    assert used == names
    gone = ReservedMeasurements("shop", dict.fromkeys(names, 1), lambda name: False)
    for refused in (reserved.of("another"), gone.of(names[0])):
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
            refused()


@pytest.mark.slow
def test_three_parties_search(meet: Any, tmp_path: Path) -> None:
    search = Search(meet(3, None, TUNED_JOB), tmp_path, tables(ROWS, parties=3))
    results = search.run()
    assert len({result.chosen for result in results.values()}) == 1, results
    bank = DisclosureLedger(search.ledger(search.parties[0]), "bank").read().entries
    assert {entry.disclosure.learner for entry in bank} == {"shop", "telco"}


def test_a_party_takes_part_in_one_search_at_a_time(search: Search) -> None:
    bank = search.parties[0]
    ledger = DisclosureLedger(search.ledger(bank), "bank")
    settings = PeerSettings.of(search.meeting.folder / "bank" / "peers.toml", **LINE)
    with exclusive_comparison(ledger), raises_code(ConfigError, "SVFL-LEDGER-BUSY", party="bank"):
        tune_with(TUNED_JOB, GRID, bank, settings, files=SearchFiles(ledger))


@pytest.mark.parametrize("file", ["record", "part"])
def test_files_of_a_running_search_are_not_read(file: str, search: Search, tmp_path: Path) -> None:
    """The files of a running search change, so no command reads them. Here a file is damaged: reading it would fail."""
    bank, save = search.parties[0], tmp_path / "part.json"
    ledger = DisclosureLedger(search.ledger(bank), "bank")
    settings = PeerSettings.of(search.meeting.folder / "bank" / "peers.toml", **LINE)
    jobs = {name: item.to_dict() for name, item in alternative_jobs(TUNED_JOB, GRID).items()}
    handshake = {"jobs": jobs, "parties": list(settings.peers.parties), "task": "tune"}
    SearchRecord(tmp_path, ledger.path, bank, handshake).begin({}, {})
    (record,) = tmp_path.glob("bank.*.search.json")
    (record if file == "record" else save).write_text("{}")
    files = SearchFiles(ledger, tmp_path, save)
    with exclusive_comparison(ledger), raises_code(ConfigError, "SVFL-LEDGER-BUSY", party="bank"):
        tune_with(TUNED_JOB, GRID, bank, settings, files=files)
    with pytest.raises(SecureVFLError) as caught:
        tune_with(TUNED_JOB, GRID, bank, settings, files=files)
    assert caught.value.code == {"record": "SVFL-CHECKPOINT", "part": "SVFL-FILE-EXISTS"}[file]


def command(meeting: Any, party: str, *options: str) -> Any:
    """Start the command of one party."""
    arguments = ["compare", f"{party}/job.toml", "--party", party, "--data", f"{party}.csv"]
    arguments += ["--ledger", f"{party}.ledger", "--grid", "l2=0.001,0.01,0.1,1,10", "--grid", "epochs=4", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = [sys.executable, "-c", "from securevfl.cli.main import main; main()"]
    return Forked([*program, *arguments], cwd=meeting.folder, env=os.environ | {"COLUMNS": "100"}, text=True, **pipes)


def ended(processes: list[Any], running: list[Any]) -> list[tuple[int, str, str]]:
    running += processes
    outputs = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *streams) for process, streams in zip(processes, outputs, strict=True)]


@pytest.mark.long
def test_commands_of_two_organisations_search_five_alternatives(meet: Any, running: list[Any]) -> None:
    """One consent at each party, the same command at both, and the entries of the account in the output."""
    meeting = meet(2, None, TUNED_JOB)
    for party in tables(2400):
        columns = [f"{party.name}{j}" for j in range(party.X.shape[1])] + ["y"] * party.active
        rows = party.X if party.y is None else np.column_stack([party.X, party.y])
        lines = [
            ",".join(["id", *columns]),
            *(f"{k}," + ",".join(map(repr, row)) for k, row in enumerate(rows.tolist())),
        ]
        (meeting.folder / f"{party.name}.csv").write_text("\n".join(lines) + "\n")
        write_rows(meeting.folder / f"{party.name}.csv", np.arange(2400))
    digests: dict[str, str] = {}
    while len(digests) < 2:  # each command asks for its consent; the other party has given it or not
        names = [("bank", digests.get("bank")), ("shop", digests.get("shop"))]
        started = [command(meeting, name, *(["--accept", digest] if digest else [])) for name, digest in names]
        for (code, _, errors), (name, _) in zip(ended(started, running), names, strict=True):
            assert code != 0
            if found := re.search(r"--accept ([0-9a-f]{16})", errors):
                digests.setdefault(name, found.group(1))
                assert "This search trains 5 alternatives" in errors
                assert "6 measurements" in errors
    started = [command(meeting, name, "--accept", digest, "--json", f"{name}.json") for name, digest in digests.items()]
    (code, table, errors), (other, nothing, why) = ended(started, running)
    assert (code, other) == (0, 0), errors + why
    assert "6 measurements" in table
    assert re.search(r"bank received [\d,]+ bits about this party's columns", nothing)
    assert "shop received 3 bits about this party's labels" in table
    result = json.loads((meeting.folder / "bank.json").read_text())
    losses = {item["name"]: item["loss"] for item in result["alternatives"]}
    assert len(losses) == 5
    assert result["chosen"] == min(losses, key=lambda name: losses[name])
    assert {item["loss"] for item in json.loads((meeting.folder / "shop.json").read_text())["alternatives"]} == {None}
    for name in digests:
        assert ModelPart.load(meeting.folder / f"{name}.model.json").parsed_job.model.l2 in (0.001, 0.01, 0.1)
