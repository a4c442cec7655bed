"""A preprocessed chunk (random numbers for some epochs) is used only if all parties have it for the current state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from securevfl.crypto.share_ring import ShareRing
from securevfl.protocols.shares.chunk_agreement import ChunkName, agree_on_chunk
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.offline_phase import OfflinePhase, _Record
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.preprocessing_store import MemoryStore
from securevfl.protocols.shares.shares_params import RowBlock
from securevfl.protocols.shares.spent_chunks import SpentChunks

PARTY_NAMES = ("a", "b", "c", "d")
CHUNK_NAME, OTHER = b"n" * 16, b"o" * 16
VISITS = 3


class Line:
    """A channel that answers with the chunk names of the other parties and records the messages sent."""

    def __init__(self, names: dict[str, bytes], on_disk: str = "") -> None:
        self.names, self.on_disk, self.sent = names, on_disk, dict[str, bytes]()

    def send(self, to: str, message: ChunkName, subchannel: str) -> None:
        self.sent[to] = message.name

    def recv(self, sender: str, kind: type[ChunkName], subchannel: str) -> ChunkName:
        return kind(self.names[sender], on_disk=sender in self.on_disk)


def ahead(
    visits: int = 0,
    r: dict[str, Any] | None = None,
    *,
    block: int = 100,
    encoding: Any = None,
    pairs: Any = None,
    is_holder: bool = False,
    delayed: dict[int, Any] | None = None,
) -> OfflinePhase:
    """Return the preprocessing of a party that starts from this state."""
    phase = OfflinePhase.__new__(OfflinePhase)
    phase._context = SimpleNamespace(me="a")  # type: ignore[assignment]
    phase._delayed, phase._rows, phase.is_holder = dict(delayed or {}), {}, is_holder
    phase._params = SimpleNamespace(block=block, encoding=encoding, pairs=pairs)  # type: ignore[assignment]
    phase._names, phase.store, phase.pairs = SpentChunks(), MemoryStore(), None
    phase.set_state(visits, state() if r is None else r)
    return phase


def state(name: str = "", at: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return states of two parties (k x d x c). If `name` is set, the number of that party at index `at` differs."""
    states = {item: np.arange(24, dtype=np.uint64).reshape(2, 4, 3) for item in ("b", "c")}
    if name:
        states[name][at] += np.uint64(1)
    return states


def with_chunk(phase: OfflinePhase, number: int = 0) -> OfflinePhase:
    """Add a chunk that was generated from the current state."""
    phase.store.put(number, CHUNK_NAME, phase._iteration, [b""] * VISITS, base=phase.state_digest())
    return phase


@pytest.mark.parametrize(
    "names",
    [
        (CHUNK_NAME, CHUNK_NAME, OTHER),
        (CHUNK_NAME, OTHER, CHUNK_NAME),
        (OTHER, CHUNK_NAME, CHUNK_NAME),
        (CHUNK_NAME, CHUNK_NAME, b""),
    ],
)
def test_a_chunk_that_one_party_lacks_is_discarded(names: tuple[bytes, ...]) -> None:
    line, phase = Line(dict(zip("bcd", names, strict=True))), with_chunk(with_chunk(ahead()), 1)
    context: Any = SimpleNamespace(me="a", parties=PARTY_NAMES, channel=line, subchannel="")
    assert not agree_on_chunk(context, phase, 0, VISITS).usable
    assert line.sent == dict.fromkeys("bcd", CHUNK_NAME)
    assert phase.store.chunk_numbers == ()  # nor later chunks, which depend on it


def test_a_chunk_that_all_have_is_ready() -> None:
    line, phase = Line(dict.fromkeys("bcd", CHUNK_NAME)), with_chunk(ahead())
    context: Any = SimpleNamespace(me="a", parties=PARTY_NAMES, channel=line, subchannel="")
    assert agree_on_chunk(context, phase, 0, VISITS).usable
    assert phase.store.chunk_numbers == (0,)


@pytest.mark.parametrize("on_disk", ["", "b", "d", "bc", "bcd"])
def test_all_parties_know_whether_all_store_chunks_on_disk(on_disk: str, tmp_path: Path) -> None:
    context: Any = SimpleNamespace(
        me="a", parties=PARTY_NAMES, channel=Line(dict.fromkeys("bcd", b""), on_disk), subchannel=""
    )
    phase = ahead()
    assert not agree_on_chunk(context, phase, 0, VISITS).on_disk
    phase.store = DiskStore(tmp_path)
    assert agree_on_chunk(context, phase, 0, VISITS).on_disk == (on_disk == "bcd")
    phase.store.close()


@pytest.mark.parametrize(
    ("is_holder", "transfer", "delayed", "is_usable"),
    [
        (True, (b"keys",), False, True),
        (True, (), False, False),  # a session with a party that stores nothing on disk left the transfers for later
        (True, (), True, True),  # and this is the same session
        (False, (), False, True),
    ],
)
def test_a_chunk_without_its_transfers_is_generated_again(
    is_holder: bool, transfer: tuple[bytes, ...], delayed: bool, is_usable: bool
) -> None:
    """Even if all other parties claim to have it: a deviating party may state what it likes about its own store."""
    phase = ahead(is_holder=is_holder, delayed={0: None} if delayed else {})
    record = msgspec.msgpack.encode(_Record(0, b"", b"", {}, transfer, ()))
    records = [(iteration, part, (b"psi", record)[part]) for iteration in range(VISITS) for part in (0, 1)]
    phase.store.write(0, CHUNK_NAME, 0, VISITS, records, base=phase.state_digest())
    line = Line(dict.fromkeys("bcd", CHUNK_NAME), on_disk="bcd")
    context: Any = SimpleNamespace(me="a", parties=PARTY_NAMES, channel=line, subchannel="")
    assert agree_on_chunk(context, phase, 0, VISITS).usable == is_usable
    assert phase.store.chunk_numbers == ((0,) if is_usable else ())


CHANGES: dict[str, Any] = {
    "another visit": ahead(1),
    "another first number": ahead(0, state("b", (0, 0, 0))),
    "another last number": ahead(0, state("b", (1, 3, 2))),
    "another number of the other party": ahead(0, state("c", (1, 0, 1))),
    "a party less": ahead(0, {"b": state()["b"]}),
    "other blocks": ahead(block=101),
    "other numbers": ahead(encoding=FixedPointEncoding(256, 0.1)),
    "other factors of pairs": ahead(pairs=PairParams(2, 2, 40, 8, 1.0, 100)),
    "parties exchanged": ahead(0, {"b": state("c", (0, 1, 0))["c"], "c": state()["b"]}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_chunk_of_another_state_is_not_ready(change: str) -> None:
    there = with_chunk(ahead())
    assert there.usable_chunk(0, VISITS) == CHUNK_NAME
    assert CHANGES[change].state_digest() != there.state_digest()
    other = CHANGES[change]
    other.store = there.store
    assert other.usable_chunk(0, VISITS) == b""


def test_a_chunk_that_cannot_be_used_is_reported_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    phase, spent = with_chunk(ahead()), with_chunk(ahead())
    assert phase.usable_chunk(1, VISITS) == b""
    assert phase.usable_chunk(0, VISITS) == CHUNK_NAME
    assert not caplog.records  # a chunk that is not there yet is no surprise
    other = ahead(0, state("b", (0, 0, 0)))
    other.store = with_chunk(ahead()).store
    started = with_chunk(ahead())
    started.store.take(0, 0)
    spent._names.spend(CHUNK_NAME)
    for refused, iterations, reason in (
        (phase, VISITS - 1, "for other epochs"),
        (other, VISITS, "by another version"),
        (started, VISITS, "before an interruption"),
        (spent, VISITS, "restored or copied"),
    ):
        caplog.clear()
        assert refused.usable_chunk(0, iterations) == b""
        (record,) = caplog.records
        assert reason in record.getMessage()
        assert "generating it again" in record.getMessage()


def test_skipping_a_chunk_applies_its_steps_by_number() -> None:
    """The rule's steps differ from iteration to iteration, so skipping must count them."""
    phase, ring = ahead(7), ShareRing(64)
    steps = SimpleNamespace(step=lambda r, v, visit: r + v * np.uint64(visit))
    phase._ring, phase._params = (
        ring,
        SimpleNamespace(
            **vars(phase._params),
            columns={"b": 4, "c": 4},
            outputs=3,
            rule_of=lambda name: steps,
            blocks=[RowBlock(0, 0, 5)],
            rows=(5, 10),
        ),
    )  # type: ignore[assignment]
    phase.store = MemoryStore(limit=1200)
    ones = {name: np.ones((4, 3), np.uint64) for name in "bc"}
    record = _Record(0, b"", b"", {name: ring.pack(v) for name, v in ones.items()}, (), ())
    phase.store.write(
        0,
        CHUNK_NAME,
        7,
        3,
        ((place, 1, msgspec.msgpack.encode(record)) for place in range(3)),
        base=phase.state_digest(),
    )
    phase.skip_chunk(0)
    assert phase._iteration == 10
    row_bytes = phase.store.chunk(0).size / 15  # three iterations on five rows
    for batch, rows in ((0, 5), (1, 10)):
        fits = [count * rows * row_bytes <= phase.store.free_bytes for count in range(12)]
        assert [phase.has_room([batch] * count) for count in range(12)] == fits
        assert True in fits
        assert False in fits
    for name, r in phase._r.items():
        np.testing.assert_array_equal(r, state()[name] + np.uint64(7 + 8 + 9))
