"""The coalitions that can learn one party's part: the attack on all sent messages.

A coalition knows its parts and masks and every message that a member sent or received. Each message is a public
combination of parts and masks, so the coalition can do linear algebra only (`knowledge` and `solve`, in exact
fractions). Masks are uniform and independent (tested by `uniform`), so everything else is hidden.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.prg import Prg
from securevfl.crypto.sum_trees import SumTree
from securevfl.protocols.number_spaces import Circle, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums import pairwise_sum
from securevfl.protocols.sums.base import SumProtocol, SumRole
from securevfl.protocols.sums.pairwise_sum import MaskedSummand
from securevfl.protocols.sums.tree_sum import MaskedPartial, MaskPartial
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from tests.small_keys import SMALL

NAMES = ("a", "b", "c", "d", "e", "f")
SPACE = Circle()
Symbol = tuple[str, ...]  # ("v", party), ("r", party) or ("m", party, party)
Equation = tuple[dict[Symbol, int], np.ndarray]


class Transcript:
    """The messages of one run by sender and receiver, and the role object of each party."""

    def __init__(self, sums: SumProtocol, parts: dict[str, list[np.ndarray]], space: Space = SPACE) -> None:
        self.sums = sums
        self.parts = parts
        self.names = ("a", *parts)
        self.events: list[Event] = []
        self.roles: dict[str, SumRole] = {}
        self.session = ""
        self.keys: dict[str, dict[str, bytes]] = {}
        self._opened: dict[bytes, np.ndarray] = {}
        self.sums_collected: list[np.ndarray] = []
        exchanges, shape = len(parts["b"]), parts["b"][0].shape

        def play(channel: Channel) -> None:
            context = PartyContext(channel, Roles.sum("a", self.names[1:]), Meter(channel.clock, channel.counters))
            self.session = f"{channel.session.hex()}/"
            role = self.roles[channel.me] = sums.role(context)
            if channel.me == "a":
                self.sums_collected = [role.collect(shape, space) for _ in range(exchanges)]
                return
            for values in parts[channel.me]:
                role.contribute(values, space)

        run_threads(
            dict.fromkeys(self.names, play),
            lambda: VirtualClock(vfl.Network()),
            timeout=30,
            observe=self.events.append,
        )

    def opened(self, ciphertext: bytes) -> np.ndarray:
        """Return the plaintext that the active party's key gives for a ciphertext of a cipher sum."""
        if ciphertext not in self._opened:
            holder = self.roles["a"]._holder  # type: ignore[attr-defined]
            self._opened[ciphertext] = np.rint(holder.decrypt(ciphertext)).astype(np.int64)
        return self._opened[ciphertext]

    def seen(self, coalition: Iterable[str], *kinds: type) -> list[tuple[str, Any]]:
        """Return sender and message of everything that the coalition sent or received, in order."""
        return [
            (event.me if event.direction == "send" else event.peer, event.message)
            for event in self.events
            if event.me in set(coalition) and isinstance(event.message, kinds)
        ]


def parts_of(names: Sequence[str], *, exchanges: int = 1, shape: int = 3, zero: bool = False) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    highest = 1 if zero else 2**32
    return {
        name: [generator.integers(highest, size=shape, dtype=np.uint64).astype(np.uint32) for _ in range(exchanges)]
        for name in names[1:]
    }


def below(tree: SumTree, party: int) -> set[int]:
    return {party}.union(*(below(tree, source) for source in tree.sources(party)))


def residues(message: Any) -> np.ndarray:
    return np.frombuffer(message.residues, "<u4").astype(np.int64)


def knowledge(run: Transcript, coalition: set[str]) -> list[Equation]:
    """Return all that the coalition knows of the first exchange, as equations over parts and masks mod 2^32."""
    names, sums = run.names, run.sums
    known: list[Equation] = [({("v", name): 1}, run.parts[name][0].astype(np.int64)) for name in coalition - {"a"}]
    if isinstance(sums, vfl.DirectSum):
        for sender, message in run.seen(coalition, vfl.protocols.sums.direct_sum.PhaseSummand):
            known.append(({("v", sender): 1}, message.values.astype(np.int64)))
    elif isinstance(sums, vfl.TreeSum):
        for kind, tree in zip((MaskedPartial, MaskPartial), sums.trees(len(names)), strict=True):
            for sender, message in run.seen(coalition, kind):
                under = [names[k] for k in below(tree, names.index(sender))]
                combination: dict[Symbol, int] = {("r", name): 1 for name in under}
                if kind is MaskedPartial:
                    combination |= {("v", name): 1 for name in under}
                known.append((combination, residues(message)))
    elif isinstance(sums, vfl.PairwiseSum):
        for name in coalition & set(run.keys):
            for peer, key in run.keys[name].items():
                mask = Prg(key, "pair mask").array(run.parts["b"][0].shape, np.uint32, number=0).astype(np.int64)
                known.append(({("m", *sorted((name, peer))): 1}, mask))
        for sender, message in run.seen(coalition, MaskedSummand):
            combination = {("v", sender): 1}
            for peer in set(run.keys) - {sender}:
                combination[("m", *sorted((sender, peer)))] = 1 if sender < peer else -1
            known.append((combination, residues(message)))
    elif isinstance(sums, vfl.CipherSum) and "a" in coalition:
        tree = sums.tree(len(names) - 1)
        for sender, message in run.seen(coalition, vfl.protocols.sums.cipher_sum.PartialSum):
            under = [names[k + 1] for k in below(tree, names[1:].index(sender))]
            opened = run.opened(message.ciphertext)
            known.append(({("v", name): 1 for name in under}, opened))
    return known


def solve(known: Sequence[Equation], expected: Symbol) -> np.ndarray | None:
    """Return one symbol (mod 2^32) as a combination of the equations; None if there is no such combination."""
    rows = [
        ({s: Fraction(c) for s, c in combination.items() if c}, {k: Fraction(1)})
        for k, (combination, _) in enumerate(known)
    ]
    rows = _without(rows, sorted({symbol for row, _ in rows for symbol in row} - {expected}))
    result = next(((row, used) for row, used in rows if expected in row), None)
    if result is None:
        return None
    row, used = result
    total: Any = 0
    for k, factor in used.items():
        weight = factor / row[expected]
        assert weight.denominator == 1, "not a combination over the ring"
        total = total + int(weight) * known[k][1].astype(object)
    return np.array(total % 2**32, dtype=np.uint32)


def _without(rows: list[Any], symbols: Sequence[Symbol]) -> list[Any]:
    """Return the combinations of rows without these symbols, by Gaussian elimination."""
    for symbol in symbols:
        pivot = next((row for row in rows if symbol in row[0]), None)
        if pivot is None:
            continue
        rows = [row for row in rows if row is not pivot]
        rows = [_minus(row, pivot, row[0][symbol] / pivot[0][symbol]) if symbol in row[0] else row for row in rows]
    return rows


def _minus(row: Any, pivot: Any, factor: Fraction) -> Any:
    result = []
    for local, other in zip(row, pivot, strict=True):
        terms = dict(local)
        for key, value in other.items():
            terms[key] = terms.get(key, Fraction(0)) - factor * value
        result.append({key: value for key, value in terms.items() if value})
    return tuple(result)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """Return the pair keys of each party."""
    results: dict[str, dict[str, bytes]] = {}
    exchange = pairwise_sum.exchange_keys

    def recorded(context: PartyContext, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
        results[context.me] = exchange(context, pair, among, domain=domain)
        return results[context.me]

    monkeypatch.setattr(pairwise_sum, "exchange_keys", recorded)
    return results


TESTED_SUMS: list[SumProtocol] = [
    vfl.DirectSum(),
    *(vfl.TreeSum(topology=topology) for topology in ("tree", "star", "ring")),
    vfl.PairwiseSum(),
    *(vfl.CipherSum(engine=SMALL, topology=topology) for topology in ("tree", "star")),
]


def wrongly_stated(sums: SumProtocol, run: Transcript) -> list[tuple[str, set[str]]]:
    """Return every party and coalition for which the attack and `coalitions` disagree."""
    stated = sums.coalitions(run.names)
    results = []
    for target in run.names[1:]:
        others = set(run.names) - {target}
        for size in range(len(others) + 1):
            for members in combinations(sorted(others), size):
                part = solve(knowledge(run, set(members)), ("v", target))
                assert part is None or np.array_equal(part, run.parts[target][0])
                if (part is not None) != (stated[target] <= set(members) or others <= set(members)):
                    results.append((target, set(members)))
    return results


@pytest.mark.parametrize("passives", [2, 3, 5])
@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_exactly_the_stated_coalitions_learn_a_part(
    sums: SumProtocol, passives: int, keys: dict[str, dict[str, bytes]]
) -> None:
    run = Transcript(sums, parts_of(NAMES[: passives + 1]))
    run.keys = keys
    assert not wrongly_stated(sums, run)


def sums_known(known: Sequence[Equation], coalition: set[str]) -> list[dict[Symbol, Fraction]]:
    """Return the combinations of the others' parts that the equations give, without any mask."""
    rows = [({s: Fraction(c) for s, c in combination.items() if c}, {}) for combination, _ in known]
    local = {("v", name) for name in coalition}
    hidden = {symbol for row, _ in rows for symbol in row if symbol[0] != "v"} | local
    return [row for row, _ in _without(rows, sorted(hidden)) if row]


@pytest.mark.parametrize("passives", [2, 3, 5])
@pytest.mark.parametrize("sums", TESTED_SUMS[1:], ids=repr)
def test_the_active_party_alone_learns_only_the_sum(
    sums: SumProtocol, passives: int, keys: dict[str, dict[str, bytes]]
) -> None:
    run = Transcript(sums, parts_of(NAMES[: passives + 1]))
    run.keys = keys
    for name in run.names[1:]:
        assert not sums_known(knowledge(run, {name}), {name})
    total, *more = sums_known(knowledge(run, {"a"}), {"a"})
    assert not more
    assert set(total) == {("v", name) for name in run.names[1:]}
    assert len(set(total.values())) == 1


def test_pairwise_passive_parties_alone_learn_nothing(keys: dict[str, dict[str, bytes]]) -> None:
    run = Transcript(vfl.PairwiseSum(), parts_of(NAMES))
    run.keys = keys
    for size in range(1, 5):
        for members in combinations(NAMES[1:], size):
            assert not sums_known(knowledge(run, set(members)), set(members))
