"""Stored sums compared with plain ones for any mix of versions, and refused messages."""

import tomllib
from collections.abc import Callable, Mapping

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.crypto.secret import Secret
from securevfl.errors import (
    ConfigError,
    CryptoError,
    KeyMismatch,
    PartiesError,
    ProtocolError,
    RangeError,
    SecureVFLError,
)
from securevfl.families.fdml.stored_sum import OUTPUT_SPACE, StoredServer, StoredSum, StoredWorker
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code

TESTED_SUMS: list[StoredSum] = [
    vfl.StoredOpen(),
    vfl.StoredMasks(),
]
HIDING = TESTED_SUMS[1:]
EXACT = {"open": 0.0, "masks": 2.0**-40}  # largest error of an entry of a sum of three
WORKERS = ("a", "b", "c")
SHAPE = (5, 2)


Sides = tuple[StoredServer, dict[str, StoredWorker]]


def context(channel: Channel, workers: tuple[str, ...]) -> PartyContext:
    return PartyContext(
        channel, Roles.sum("server", workers), Meter(channel.clock, channel.counters), subchannel="stored"
    )


def met(sums: StoredSum, workers: tuple[str, ...] = WORKERS, readers: tuple[str, ...] = ()) -> Sides:
    """Return all sides of one session after its key exchange. By default all workers read sums."""

    def play(channel: Channel) -> StoredServer | StoredWorker:
        party_context = context(channel, workers)
        reading = readers or workers
        return sums.server(party_context, reading) if channel.me == "server" else sums.worker(party_context, reading)

    roles = run_threads(dict.fromkeys(("server", *workers), play), lambda: VirtualClock(vfl.Network()), timeout=60)
    server = roles.pop("server")
    assert isinstance(server, StoredServer)
    return server, roles


@pytest.fixture(scope="module")
def sides() -> Callable[[StoredSum], Sides]:
    """Return one session for each kind of sum; each test uses other batches."""
    sessions: dict[str, Sides] = {}
    return lambda sums: sessions.setdefault(repr(sums), met(sums))


def outputs(*seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=30.0, size=SHAPE)


def test_every_registered_kind_is_tested() -> None:
    assert {type(stored_sum) for stored_sum in TESTED_SUMS} == set(STORED_SUMS.values())


@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_a_total_is_the_sum_of_the_latest_outputs(sums: StoredSum, sides: Callable[[StoredSum], Sides]) -> None:
    server, workers = sides(sums)
    generator, stored, latest, version = np.random.default_rng(1), {}, {}, dict.fromkeys(WORKERS, -1)
    for step in range(12):
        batch = 0
        pusher = WORKERS[step] if step < 3 else str(generator.choice(WORKERS))
        version[pusher] += int(generator.integers(1, 4))
        latest[pusher] = outputs(step)
        stored[pusher] = workers[pusher].conceal(latest[pusher], batch, version[pusher])
        if step >= 2:
            got = workers[pusher].reveal(server.add(stored), version, batch, SHAPE)
            apart = np.abs(got - np.sum(list(latest.values()), axis=0)).max()
            assert apart <= EXACT[sums.name] + 1e-12


@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_values_up_to_the_bound_are_added_and_beyond_it_refused(
    sums: StoredSum, sides: Callable[[StoredSum], Sides]
) -> None:
    server, workers = sides(sums)
    full = {name: np.full(SHAPE, OUTPUT_SPACE.bound) for name in WORKERS}
    stored = {name: workers[name].conceal(full[name], 1, 0) for name in WORKERS}
    got = workers["a"].reveal(server.add(stored), dict.fromkeys(WORKERS, 0), 1, SHAPE)
    np.testing.assert_allclose(got, 3 * OUTPUT_SPACE.bound, rtol=1e-6)
    for bad in (OUTPUT_SPACE.bound * 1.001, -OUTPUT_SPACE.bound * 1.001, np.nan, np.inf):
        H = outputs(0)
        H[3, 1] = bad
        with pytest.raises(RangeError) as caught:
            workers["a"].conceal(H, 1, workers["a"]._concealed[1] + 1)
        assert f"{H[0, 0]}" not in str(caught.value)


@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_a_version_serves_once(sums: StoredSum, sides: Callable[[StoredSum], Sides]) -> None:
    worker = sides(sums)[1]["b"]
    worker.conceal(outputs(1), 2, 4)
    for version in (4, 3, 0):
        with raises_code(CryptoError, "SVFL-CRYPTO-REUSE"):
            worker.conceal(outputs(2), 2, version)
    worker.conceal(outputs(1), 3, 4)


@pytest.mark.parametrize("sums", HIDING, ids=repr)
def test_equal_outputs_never_look_alike(sums: StoredSum, sides: Callable[[StoredSum], Sides]) -> None:
    worker, H = sides(sums)[1]["c"], outputs(3)
    payloads = [worker.conceal(H, batch, version) for batch in (4, 5) for version in range(3)]
    tails = {payload[-64:] for payload in payloads}
    assert len(tails) == 6


@pytest.mark.parametrize("sums", HIDING, ids=repr)
def test_a_total_of_other_payloads_than_named_is_refused(sums: StoredSum, sides: Callable[[StoredSum], Sides]) -> None:
    """Cases: one worker's payload alone, one of them twice, an older version, another batch."""
    server, workers = sides(sums)
    stored = {name: workers[name].conceal(outputs(4), 6, 1) for name in WORKERS}
    elsewhere = workers["b"].conceal(outputs(4), 7, 1)
    versions = dict.fromkeys(WORKERS, 1)
    before = dict(stored)
    stored["a"] = workers["a"].conceal(outputs(5), 6, 2)
    for wrong in (
        server.add_payloads({"b": stored["b"]}),
        server.add(stored | {"c": stored["b"]}),
        server.add(before),
        server.add(stored | {"b": elsewhere}),
    ):
        with raises_code(KeyMismatch, "SVFL-CRYPTO-KEY"):
            workers["a"].reveal(wrong, versions | {"a": 2}, 6, SHAPE)
    workers["a"].reveal(server.add(stored), versions | {"a": 2}, 6, SHAPE)


@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_versions_that_cannot_be_are_refused(sums: StoredSum, sides: Callable[[StoredSum], Sides]) -> None:
    server, workers = sides(sums)
    stored = {name: workers[name].conceal(outputs(6), 8, 2) for name in WORKERS}
    total, versions = server.add(stored), dict.fromkeys(WORKERS, 2)

    def refused(claimed_versions: Mapping[str, int]) -> None:
        with raises_code(ProtocolError, "SVFL-PROTOCOL-CHEATING"):
            workers["a"].reveal(total, claimed_versions, 8, SHAPE)

    workers["a"].reveal(total, versions, 8, SHAPE)
    refused(versions | {"a": 1})
    refused(versions | {"mallory": 2})
    refused({"b": 2, "c": 2})
    refused(versions | {"b": 1})
    if sums.hides_parts:
        refused({"a": 2, "b": 2})
        with raises_code(ProtocolError, "SVFL-STATE"):
            server.add({"a": stored["a"], "b": stored["b"]})


@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_bytes_that_are_cut_or_altered_give_a_typed_error(sums: StoredSum, sides: Callable[[StoredSum], Sides]) -> None:
    server, workers = sides(sums)
    stored = {name: workers[name].conceal(outputs(7), 9, 0) for name in WORKERS}
    total, versions = server.add(stored), dict.fromkeys(WORKERS, 0)
    for wrong in (b"", total[:-1], total[:-8], total + bytes(8), total[: len(total) // 2]):
        with pytest.raises(SecureVFLError):
            workers["a"].reveal(wrong, versions, 9, SHAPE)
    for shape in ((4, 2), (6, 2), (5, 1)):
        with pytest.raises(SecureVFLError):
            workers["a"].reveal(total, versions, 9, shape)
    for wrong in (b"", stored["b"][:-1], stored["b"][:-8]):
        with pytest.raises(SecureVFLError):
            server.add(stored | {"b": wrong})


@pytest.mark.parametrize("sums", HIDING, ids=repr)
def test_payloads_of_another_session_do_not_open(sums: StoredSum, sides: Callable[[StoredSum], Sides]) -> None:
    """A restarted worker has a new key, so payloads that the server stored before do not open."""
    server, workers = sides(sums)
    again, others = met(sums)
    payloads = {name: workers[name].conceal(outputs(8), 10, 0) for name in WORKERS}
    fresh = {name: others[name].conceal(outputs(8), 10, 0) for name in WORKERS}
    assert all(payloads[name][-64:] != fresh[name][-64:] for name in WORKERS)
    with pytest.raises(CryptoError):
        others["a"].reveal(server.add(payloads), dict.fromkeys(WORKERS, 0), 10, SHAPE)
    with pytest.raises(CryptoError):
        others["a"].reveal(again.add(fresh | {"b": payloads["b"]}), dict.fromkeys(WORKERS, 0), 10, SHAPE)


@pytest.mark.parametrize("sums", HIDING, ids=repr)
def test_two_workers_are_enough(sums: StoredSum) -> None:
    server, workers = met(sums, ("a", "b"))
    stored = {name: workers[name].conceal(outputs(9), 0, 0) for name in workers}
    for worker in workers.values():
        got = worker.reveal(server.add(stored), dict.fromkeys(workers, 0), 0, SHAPE)
        np.testing.assert_allclose(got, 2 * outputs(9), atol=1e-3)


@pytest.mark.parametrize("sums", HIDING, ids=repr)
def test_a_worker_that_is_told_no_sums_has_no_key_but_its_own(sums: StoredSum) -> None:
    server, workers = met(sums, readers=("b",))
    stored = {name: workers[name].conceal(outputs(9), 0, 0) for name in WORKERS}
    total, versions = server.add(stored), dict.fromkeys(WORKERS, 0)
    np.testing.assert_allclose(workers["b"].reveal(total, versions, 0, SHAPE), 3 * outputs(9), atol=1e-3)
    for name in ("a", "c"):
        secrets = [value for value in vars(workers[name]).values() if isinstance(value, Secret)]
        assert [set(value._keys) for value in secrets if hasattr(value, "_keys")] == [{name}]


def test_who_reads_must_be_a_worker() -> None:
    for workers, readers in ((WORKERS, ("mallory",)), (("a",), ("a",))):
        with raises_code(PartiesError, "SVFL-PARTIES-ROLE"):
            met(vfl.StoredMasks(), workers, readers)


def test_the_open_sum_may_be_of_those_that_have_pushed() -> None:
    server, workers = met(vfl.StoredOpen())
    payload = workers["a"].conceal(outputs(1), 0, 0)
    np.testing.assert_array_equal(workers["a"].reveal(server.add({"a": payload}), {"a": 0}, 0, SHAPE), outputs(1))


def test_secrets_do_not_show(sides: Callable[[StoredSum], Sides]) -> None:
    for sums in HIDING:
        attributes = vars(sides(sums)[1]["a"])
        assert not any(isinstance(value, bytes) for value in attributes.values())
        assert any(repr(value).endswith(", secret>") for value in attributes.values())


def test_jobs_name_stored_sums() -> None:
    for option, expected in (("open", vfl.StoredOpen()), ("masks", vfl.StoredMasks()), (None, None)):
        assert vfl.FDML(lr=0.1, stored=option).stored == expected
    for wrong in ("ckks", {"name": "paillier"}):
        with raises_code(ConfigError, "SVFL-JOB-OPTION"):
            vfl.FDML(lr=0.1, stored=wrong)


def test_a_job_written_before_is_told_the_new_place() -> None:
    text = (
        'model = "logistic"\noptimizer = {name = "fdml", lr = 0.3}\nprotocol = {residual = "open", stored = "masks"}\n'
    )
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        vfl.Job.from_dict(tomllib.loads(text))
