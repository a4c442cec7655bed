"""Trainings of several processes over gRPC with `securevfl.join`."""

import gc
import json
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import STOP_REASONS, ConfigError, DataError, DivergenceError, PartiesError, TransportError
from securevfl.job import Job
from securevfl.organisations.join import join
from securevfl.organisations.kit import write_kit
from securevfl.organisations.toml_writer import to_toml
from securevfl.runtime import eventlog
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart, PartStatus
from securevfl.training.run_setup import run_key
from securevfl.transport.peers import Peers
from securevfl.transport.relay import Relay
from securevfl.transport.tls import Credentials
from tests.transport.processes import at_each, together

SILENCE = 6.0  # seconds without a packet after which a relay ends


def train(meeting: Any, parties: Sequence[vfl.Party], **options: Any) -> dict[str, Any]:
    """Let these parties join from threads of this process, with checkpoints and a model file."""

    def play(party: vfl.Party, kit: Path) -> Any:
        settings = {"timeout": 10, "patience": 2, "save": kit / "part.json", "checkpoints": kit / "states"} | options
        return join(meeting.job, party, kit / "peers.toml", **settings)

    return at_each(meeting, play, parties)


@pytest.mark.exact_outputs
@pytest.mark.parametrize(
    ("residual", "count", "hub", "bound"),
    [
        pytest.param("open", 2, None, 0.0, marks=pytest.mark.slow),
        (vfl.Ckks(), 2, None, 1e-3),
        pytest.param("open", 3, "shop", 0.0, marks=pytest.mark.slow),
    ],
    ids=["open", "ckks", "open through a hub"],
)
@pytest.mark.long
def test_processes_train_the_model_of_simulate(
    meet: Any, running: list[Any], residual: Any, count: int, hub: str | None, bound: float
) -> None:
    meeting = meet(count, hub, meet.job(residual))
    running += [meeting.spawn(name) for name in meeting.peers.parties]
    for process in running:
        assert process.wait(240) == 0, process.stderr.read()
    meeting.compare(bound)
    events = [json.loads(line) for line in meeting.log(meeting.peers.active).splitlines()]
    assert {"connected", "agreed", "round", "finished"} <= {event["event"] for event in events}
    assert all(isinstance(fact, str | int | float) for event in events for fact in event.values())


def test_a_party_without_an_address_calls(meet: Any) -> None:
    meeting = meet(3, addressed=["shop", "telco"])
    run = vfl.simulate(meeting.job, vfl.datasets.breast_cancer(3))
    for name, part in together(meeting).items():
        assert (part.theta == run.parts[name].theta).all()


def test_rounds_that_end_by_themselves_end_for_all(meet: Any) -> None:
    job = meet.job(epochs=30, batch_size="all").model_copy(update={"optimizer": vfl.BlockNewton(tolerance=0.05)})
    run = vfl.simulate(job, vfl.datasets.breast_cancer(3))
    assert len(run.history) < 30
    for name, part in together(meet(3, job=job)).items():
        assert (part.theta == run.parts[name].theta).all()
        assert part.metrics == run.parts[name].metrics


@pytest.mark.parametrize(("sums", "hub"), [("tree", None), ("pairwise", "shop")])
def test_two_workers_train_a_kernel_model(meet: Any, sums: str, hub: str | None) -> None:
    update = {"protocol": vfl.Protocol(sum=sums), "optimizer": vfl.FDSKL()}
    job = meet.job().model_copy(update=update | {"model": vfl.Kernel(gamma=0.05, blocks=3, block_size=16)})
    parties = vfl.datasets.breast_cancer(3)
    parties[1].y = parties[0].y
    parts = train(meet(3, hub, job), parties)
    run = meet.simulate_with(job, parties, parts)
    assert parts["bank"].metrics == run.metrics
    assert run.metrics["auc"] > 0.85
    for name, part in parts.items():
        assert (part.theta == run.parts[name].theta).all()
    assert {name for name, part in parts.items() if part.theta.any()} == {"bank", "shop"}


@pytest.mark.long
def test_who_was_killed_on_its_way_out_has_its_model(meet: Any) -> None:
    meeting, parties = meet(2), vfl.datasets.breast_cancer(2)
    parts = train(meeting, parties)
    assert not list(meeting.folder.glob("*/states"))
    alone = train(meeting, parties[:1])
    assert (alone["bank"].theta == parts["bank"].theta).all()
    assert alone["bank"].run == parts["bank"].run
    both = train(meeting, parties)
    assert {(part.run, part.status) for part in both.values()} == {(parts["bank"].run, PartStatus.CONFIRMED)}
    (meeting.kit("shop") / "part.json").unlink()
    half = {name: str(error) for name, error in train(meeting, parties).items()}
    assert "this training is complete at this party" in half["bank"]
    assert half["shop"].startswith(f"bank has stopped: {STOP_REASONS['refused']}")
    anew = train(meeting, parties, retrain=True)
    assert {part.status for part in anew.values()} == {PartStatus.NEW}
    assert anew["bank"].run == anew["shop"].run != parts["bank"].run


@pytest.mark.long
def test_who_is_through_does_not_end_well_beside_one_who_is_not(meet: Any) -> None:
    meeting, parties = meet(3), vfl.datasets.breast_cancer(3)
    parts = train(meeting, parties, save=None)
    states, key = Checkpoints(meeting.kit("shop") / "states", "shop"), run_key(meeting.job, parties[1])
    states.finish(key, parts["shop"])
    both = train(meeting, parties[:2], timeout=4)
    assert all(isinstance(error, TransportError) and "telco" in str(error) for error in both.values())
    assert states.final(key) is not None
    alone = train(meeting, parties[1:2])
    assert (alone["shop"].theta == parts["shop"].theta).all()


@pytest.mark.exact_outputs
def test_a_relay_of_its_own(meet: Any) -> None:
    meeting = meet(3, "relay", meet.job(vfl.Ckks()))
    relay = Relay(Credentials(meeting.kit("relay"), "relay"), meeting.peers, patience=5)
    serving = threading.Thread(target=relay.run, args=(240,))
    serving.start()
    run = vfl.simulate(meeting.job, vfl.datasets.breast_cancer(3))
    for name, part in together(meeting).items():
        assert abs(part.theta - run.parts[name].theta).max() < 1e-3
    serving.join(240)
    assert not serving.is_alive()
    assert not (meeting.kit("relay") / "job.toml").exists()


def test_a_relay_that_hears_from_nobody_says_so(meet: Any) -> None:
    meeting = meet(3, "relay", meet.job(vfl.Ckks()))
    relay = Relay(Credentials(meeting.kit("relay"), "relay"), meeting.peers, patience=5)
    with raises_code(TransportError, "SVFL-PEER-AWAY", party="relay"):
        relay.run(0.5)


@pytest.mark.slow
def test_a_relay_serves_longer_than_its_patience_with_silence(meet: Any) -> None:
    """The run takes longer than the time that the relay waits for a packet."""
    meeting = meet(3, "relay", meet.job(vfl.Ckks(), epochs=6))
    relay = Relay(Credentials(meeting.kit("relay"), "relay"), meeting.peers, patience=5)
    ended = list[float]()

    def serve() -> None:
        relay.run(SILENCE)
        ended.append(time.monotonic())

    serving, start = threading.Thread(target=serve), time.monotonic()
    serving.start()
    at_each(
        meeting,
        lambda party, kit: join(
            meeting.job, party, kit / "peers.toml", timeout=60, on_round=lambda *_: time.sleep(SILENCE / 4)
        ),
    )
    serving.join(240)
    assert ended
    assert ended[0] - start > SILENCE


def test_another_job_names_the_key(meet: Any) -> None:
    meeting = meet(3)
    other = meet.job(epochs=5)
    results = together(meeting, shop=other)
    assert all(isinstance(error, ConfigError | TransportError) for error in results.values())
    assert "job.epochs" in str(results["bank"]) + str(results["telco"])  # the party that noticed; others receive a code
    assert isinstance(results["shop"], ConfigError)
    assert "shop has 5" in str(results["bank"]) or "shop has 5" in str(results["telco"])


def test_who_is_missing_is_named(meet: Any) -> None:
    meeting = meet(2)
    party = vfl.datasets.breast_cancer(2)[0]
    with raises_code(TransportError, "SVFL-PEER-AWAY", peer="shop"):
        join(meeting.job, party, meeting.kit("bank") / "peers.toml", timeout=1)


def test_an_error_at_one_party_ends_all(meet: Any) -> None:
    meeting = meet(3)
    parties = vfl.datasets.breast_cancer(3)
    parties[1] = parties[1].take(range(500))  # type: ignore[arg-type]
    results = together(meeting, parties)
    assert set(results) == {"bank", "shop", "telco"}
    causes = ["500" in str(error) and "Align" in str(error) for error in results.values()]
    assert any(causes)
    assert all(mine or STOP_REASONS["refused"] in str(e) for mine, e in zip(causes, results.values(), strict=True)), (
        results
    )


def test_roles_are_checked(meet: Any) -> None:
    meeting = meet(2)
    bank, shop = vfl.datasets.breast_cancer(2)
    stranger = vfl.Party("telco", shop.X, aligned=True)
    with raises_code(PartiesError, "SVFL-PARTIES-NAME", party="telco"):
        join(meeting.job, stranger, meeting.kit("bank") / "peers.toml")
    with raises_code(PartiesError, "SVFL-PARTIES-LABELS", party="bank"):
        join(meeting.job, vfl.Party("bank", bank.X, aligned=True), meeting.kit("bank") / "peers.toml")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": {"bank": "h:1"}, "passives": ("shop", "telco")}, "neither shop nor telco"),
        ({"hub": "shop"}, "address.shop: the hub's address is missing"),
        ({"address": {"bank": "h"}}, "address.bank is not of the form host:port"),
        ({"address": {"bank": "h:99999"}}, "address.bank is not of the form host:port"),
        ({"address": {"telco": "h:1"}}, "address.telco: telco is not a party"),
        ({"passives": ("bank",)}, "a name occurs twice"),
        ({"passives": ()}, "passives"),
        ({"passives": ("sh op",)}, "is invalid"),
    ],
)
def test_peers_that_cannot_be(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Peers(**{"active": "bank", "passives": ("shop",), "address": {"bank": "h:1"}} | change)


def test_a_kit_holds_what_is_needed_and_no_more(meet: Any, tmp_path: Path) -> None:
    meeting = meet(2)
    kit = meeting.kit("shop")
    assert {path.name for path in kit.iterdir()} == {"job.toml", "peers.toml", "ca.pem", "shop.pem", "shop.key"}
    assert (kit / "shop.key").stat().st_mode & 0o777 == 0o600
    assert Job.load(kit / "job.toml").digest == meeting.job.digest
    assert Peers.load(kit / "peers.toml") == meeting.peers
    write_kit(kit, "shop", meeting.job, meeting.peers, tmp_path / "authority")
    assert (kit / "shop.key").stat().st_mode & 0o777 == 0o600


PLAIN = st.recursive(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), PLAIN))
def test_toml_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_events_are_one_line_each(tmp_path: Path) -> None:
    handler = eventlog.write_to(tmp_path / "log")
    eventlog.emit("bank", "round", {"round": 1, "waited": 0.25, "reason": "two\nlines"})
    eventlog.LOGGER.removeHandler(handler)
    handler.close()
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "event": "round",
        "party": "bank",
        "round": 1,
        "waited": 0.25,
        "reason": "two\nlines",
    }


def test_who_diverges_leaves_no_model_and_tells_why(meet: Any) -> None:
    job = meet.job().model_copy(update={"model": vfl.Square(), "optimizer": vfl.FedBCD(lr=50.0)})
    meeting = meet(2, None, job)
    results = train(meeting, vfl.datasets.breast_cancer(2))
    assert isinstance(results["bank"], DivergenceError)
    assert "lower lr" in str(results["shop"])
    assert not list(meeting.folder.glob("*/part.json"))


@pytest.mark.parametrize("damage", ["an older copy", "a changed byte"])
def test_an_unusable_ledger_ends_a_join_before_a_round(damage: str, meet: Any, tmp_path: Path) -> None:
    """Runs, scores and used chunks are in one file, which is checked before anything is disclosed."""
    shares = {"optimizer": vfl.FedSGD(lr=0.3), "protocol": "shares", "accepts": ("small_metrics", "scores")}
    job = vfl.Job(model="logistic", batch_size=160, epochs=12, test_fraction=0.2, **shares)  # type: ignore[arg-type]
    meeting, parties, rounds = meet(2, job=job), vfl.datasets.breast_cancer(2), list[str]()
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}

    def play(party: vfl.Party, kit: Path) -> Any:
        path = ledgers[party.name].path
        return join(
            meeting.job,
            party,
            kit / "peers.toml",
            ledger=DisclosureLedger(path, party.name),
            timeout=10,
            patience=2,
            on_round=lambda done, of: rounds.append(party.name),
        )

    ledgers["shop"].record_early_abort({"telco"})
    older = ledgers["shop"].path.read_bytes()
    ledgers["shop"].record_early_abort({"telco"})
    ledgers["shop"].record_early_abort({"telco"})
    path = ledgers["shop"].path
    ledgers.clear()
    ledgers |= {name: DisclosureLedger(tmp_path / f"{name}.ledger", name) for name in ("bank", "shop")}
    gc.collect()
    newest = path.read_bytes()
    path.write_bytes(older if damage == "an older copy" else newest[:-50] + bytes([newest[-50] ^ 1]) + newest[-49:])
    ended = at_each(meeting, play, parties)
    assert isinstance(ended["shop"], DataError)
    assert ended["shop"].code == "SVFL-LEDGER-DAMAGED"
    assert not rounds
    path.write_bytes(newest)
    ended = at_each(meeting, play, parties)
    assert all(isinstance(part, ModelPart) for part in ended.values()), ended
