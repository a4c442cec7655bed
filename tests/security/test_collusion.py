"""Who must collude to learn one party's part: the attack carried out on what was sent.

A coalition knows its own parts and masks and every message that one of it sent or received. Each of these is a public
combination of parts and masks, so all it can compute of a part is linear algebra (`knowledge` and `solve`, in exact
fractions). Masks are uniform and independent (`uniform` looks at that), so what linear algebra does not give is hidden.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.crypto.masking import masks
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.masking.shamir import SHARE_BYTES, Share, combine
from securevfl.crypto.masking.sum_trees import SumTree
from securevfl.crypto.prg import Prg
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Circle, Space
from securevfl.protocols.sums import dropout_sum, pairwise_sum
from securevfl.protocols.sums.base import Coalition, SumProtocol, SumRole
from securevfl.protocols.sums.dropout_sum import Commit, Commits, DoubleMasked, DropoutMember, SeedShares, Survivors
from securevfl.protocols.sums.pairwise_sum import PairMasked
from securevfl.protocols.sums.topology import one_pass, two_passes
from securevfl.protocols.sums.tree_sum import MaskedPartial, MaskPartial, TreeSumRole
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads

NAMES = ("a", "b", "c", "d", "e", "f")
SPACE = Circle()
Symbol = tuple[str, ...]  # ("v", party), ("r", party) or ("m", party, party)
Equation = tuple[dict[Symbol, int], np.ndarray]


class Transcript:
    """One run: what every party sent and received, and its role object."""

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
            seat = Seat(channel, Roles.sum("a", self.names[1:]), Meter(channel.clock, channel.books))
            self.session = f"{channel.session.hex()}/"
            role = self.roles[channel.me] = sums.role(seat)
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
        """What the active party's key makes of a ciphertext of a cipher sum."""
        if ciphertext not in self._opened:
            holder = self.roles["a"]._holder  # type: ignore[attr-defined]
            self._opened[ciphertext] = np.rint(holder.decrypt(ciphertext)).astype(np.int64)
        return self._opened[ciphertext]

    def seen(self, coalition: Iterable[str], *kinds: type) -> list[tuple[str, Any]]:
        """Sender and message of each that one of the coalition sent or received, in order."""
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
    """All that the coalition holds of the first exchange, as equations over parts and masks mod 2^32."""
    names, sums = run.names, run.sums
    known: list[Equation] = [({("v", name): 1}, run.parts[name][0].astype(np.int64)) for name in coalition - {"a"}]
    if isinstance(sums, vfl.DirectSum):
        for sender, message in run.seen(coalition, vfl.protocols.sums.direct_sum.PhasePart):
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
        tree = one_pass(sums.topology, len(names))
        for sender, message in run.seen(coalition, PairMasked):
            combination = {}
            for name in (names[k] for k in below(tree, names.index(sender))):
                combination[("v", name)] = 1
                for peer in set(run.keys) - {name}:
                    pair: Symbol = ("m", *sorted((name, peer)))
                    combination[pair] = combination.get(pair, 0) + (1 if name < peer else -1)
            known.append((combination, residues(message)))
    elif isinstance(sums, vfl.CipherSum) and "a" in coalition:
        tree = sums.tree(len(names) - 1)
        for sender, message in run.seen(coalition, vfl.protocols.sums.cipher_sum.PartialSum):
            under = [names[k + 1] for k in below(tree, names[1:].index(sender))]
            opened = run.opened(message.ciphertext)
            known.append(({("v", name): 1 for name in under}, opened))
    return known


def solve(known: Sequence[Equation], wanted: Symbol) -> np.ndarray | None:
    """The value (mod 2^32) of one symbol as a combination of the equations; None if there is none."""
    rows = [
        ({s: Fraction(c) for s, c in combination.items() if c}, {k: Fraction(1)})
        for k, (combination, _) in enumerate(known)
    ]
    rows = _without(rows, sorted({symbol for row, _ in rows for symbol in row} - {wanted}))
    found = next(((row, used) for row, used in rows if wanted in row), None)
    if found is None:
        return None
    row, used = found
    total: Any = 0
    for k, factor in used.items():
        weight = factor / row[wanted]
        assert weight.denominator == 1, "not a combination over the ring"
        total = total + int(weight) * known[k][1].astype(object)
    return np.array(total % 2**32, dtype=np.uint32)


def _without(rows: list[Any], symbols: Sequence[Symbol]) -> list[Any]:
    """Gaussian elimination: the rows' combinations in which these symbols do not occur."""
    for symbol in symbols:
        pivot = next((row for row in rows if symbol in row[0]), None)
        if pivot is None:
            continue
        rows = [row for row in rows if row is not pivot]
        rows = [_minus(row, pivot, row[0][symbol] / pivot[0][symbol]) if symbol in row[0] else row for row in rows]
    return rows


def _minus(row: Any, pivot: Any, factor: Fraction) -> Any:
    result = []
    for own, other in zip(row, pivot, strict=True):
        terms = dict(own)
        for key, value in other.items():
            terms[key] = terms.get(key, Fraction(0)) - factor * value
        result.append({key: value for key, value in terms.items() if value})
    return tuple(result)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """The pair keys that each party agrees on, by party."""
    found: dict[str, dict[str, bytes]] = {}
    exchange = pairwise_sum.exchange_keys

    def recorded(seat: Seat, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
        found[seat.me] = exchange(seat, pair, among, domain=domain)
        return found[seat.me]

    monkeypatch.setattr(pairwise_sum, "exchange_keys", recorded)
    monkeypatch.setattr(dropout_sum, "exchange_keys", recorded)
    return found


SUMS: list[SumProtocol] = [
    vfl.DirectSum(),
    *(vfl.TreeSum(topology=topology) for topology in ("tree", "star", "ring")),
    *(vfl.PairwiseSum(topology=topology) for topology in ("tree", "star", "ring")),
    *(vfl.CipherSum(engine=vfl.Paillier(bits=2048), topology=topology) for topology in ("tree", "star", "ring")),
]


def holds(coalition: set[str], needed: Coalition, everyone: set[str]) -> bool:
    enough = needed.members <= coalition and len(coalition & needed.among) >= needed.further
    return enough or coalition >= everyone


def wrongly_stated(sums: SumProtocol, run: Transcript) -> list[tuple[str, set[str]]]:
    """Every party and coalition of others for which the attack and `coalitions` disagree."""
    stated = sums.coalitions(run.names)
    found = []
    for target in run.names[1:]:
        others = set(run.names) - {target}
        for size in range(len(others) + 1):
            for members in combinations(sorted(others), size):
                part = solve(knowledge(run, set(members)), ("v", target))
                assert part is None or np.array_equal(part, run.parts[target][0])
                if (part is not None) != holds(set(members), stated[target], others):
                    found.append((target, set(members)))
    return found


@pytest.mark.parametrize("passives", [2, 3, 5])
@pytest.mark.parametrize("sums", SUMS, ids=repr)
def test_the_stated_coalitions_learn_a_part_and_no_others_do(
    sums: SumProtocol, passives: int, keys: dict[str, dict[str, bytes]]
) -> None:
    run = Transcript(sums, parts_of(NAMES[: passives + 1]))
    run.keys = keys
    assert not wrongly_stated(sums, run)


def sums_known(known: Sequence[Equation], coalition: set[str]) -> list[dict[Symbol, Fraction]]:
    """The combinations of others' parts that the equations give, without any mask."""
    rows = [({s: Fraction(c) for s, c in combination.items() if c}, {}) for combination, _ in known]
    own = {("v", name) for name in coalition}
    hidden = {symbol for row, _ in rows for symbol in row if symbol[0] != "v"} | own
    return [row for row, _ in _without(rows, sorted(hidden)) if row]


@pytest.mark.parametrize("passives", [2, 3, 5])
@pytest.mark.parametrize("sums", SUMS[1:], ids=repr)
def test_alone_the_active_party_learns_the_sum_and_the_others_nothing(
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


@pytest.mark.parametrize("topology", ["tree", "ring"])
def test_pairwise_the_passive_parties_learn_nothing_without_the_active_party(
    topology: str, keys: dict[str, dict[str, bytes]]
) -> None:
    run = Transcript(vfl.PairwiseSum(topology=topology), parts_of(NAMES))
    run.keys = keys
    for size in range(1, 5):
        for members in combinations(NAMES[1:], size):
            assert not sums_known(knowledge(run, set(members)), set(members))


def test_a_ring_that_the_active_party_does_not_mask_is_caught(keys: dict[str, dict[str, bytes]]) -> None:
    class OpenRing(vfl.PairwiseSum):
        def role(self, seat: Seat) -> SumRole:
            kind = pairwise_sum.PairwiseCollector if seat.me == "a" else pairwise_sum.PairwiseMember
            return kind(seat, one_pass("ring", len(seat.parties)), seat.contributors)

    run = Transcript(OpenRing(topology="ring"), parts_of(NAMES))
    run.keys = keys
    assert sums_known(knowledge(run, {"f"}), {"f"})


class SameTrees(vfl.TreeSum):
    """T2 = T1."""

    def trees(self, parties: int) -> tuple[SumTree, SumTree]:
        T1, _ = two_passes(self.topology, parties)
        return T1, T1


def test_equal_trees_are_caught() -> None:
    run = Transcript(SameTrees(), parts_of(NAMES))
    alone = [
        (coalition, target)
        for coalition in NAMES
        for target in NAMES[1:]
        if coalition != target and solve(knowledge(run, {coalition}), ("v", target)) is not None
    ]
    assert alone


class WithRole(vfl.TreeSum):
    """A tree sum with other masks."""

    def role(self, seat: Seat) -> SumRole:
        return self.roles(seat, *self.trees(len(seat.parties)))

    def roles(self, seat: Seat, T1: SumTree, T2: SumTree) -> SumRole:
        return TreeSumRole(seat, T1, T2)


class NoMask(TreeSumRole):
    def _mask(self, part: np.ndarray) -> np.ndarray:
        return np.zeros_like(part)


class OneMask(TreeSumRole):
    """The mask of the first exchange, again and again."""

    def _mask(self, part: np.ndarray) -> np.ndarray:
        if not hasattr(self, "kept"):
            self.kept = super()._mask(part)
        return self.kept.copy()


class SeededMask(TreeSumRole):
    """Masks from the job's seed."""

    def __init__(self, seat: Seat, T1: SumTree, T2: SumTree) -> None:
        super().__init__(seat, T1, T2)
        self._masks = Prg(seat.seed.to_bytes(32, "big"), seat.me)


class NoMaskSum(WithRole):
    def roles(self, seat: Seat, T1: SumTree, T2: SumTree) -> SumRole:
        return NoMask(seat, T1, T2)


class OneMaskSum(WithRole):
    def roles(self, seat: Seat, T1: SumTree, T2: SumTree) -> SumRole:
        return OneMask(seat, T1, T2)


class SeededMaskSum(WithRole):
    def roles(self, seat: Seat, T1: SumTree, T2: SumTree) -> SumRole:
        return SeededMask(seat, T1, T2)


MASKED: list[SumProtocol] = [sums for sums in SUMS if isinstance(sums, vfl.TreeSum | vfl.PairwiseSum)]
MASKED.append(vfl.PairwiseSum(threshold=2 / 3))
CARRIERS = (MaskedPartial, MaskPartial, PairMasked, DoubleMasked)


def uniform(words: np.ndarray) -> bool:
    """Chi-square of the bytes with 255 degrees of freedom; wrong once in 10^12."""
    data = np.ascontiguousarray(words).view(np.uint8)
    counts, expected = np.bincount(data, minlength=256), len(data) / 256
    return bool(((counts - expected) ** 2 / expected).sum() < 450)


def carried(run: Transcript) -> dict[tuple[str, type], list[np.ndarray]]:
    """What each party sent of each kind, exchange by exchange."""
    found: dict[tuple[str, type], list[np.ndarray]] = {}
    for event in run.events:
        if event.direction == "send" and isinstance(event.message, CARRIERS):
            words = np.frombuffer(event.message.residues, "<u4")
            found.setdefault((event.me, type(event.message)), []).append(words)
    return found


def every_message_is_uniform(sums: SumProtocol) -> bool:
    run = Transcript(sums, parts_of(NAMES[:5], shape=1 << 13, zero=True))
    return all(uniform(words) for sent in carried(run).values() for words in sent)


def rounds_tell_no_differences(sums: SumProtocol) -> bool:
    """The same parts in two exchanges: are the differences of what was sent uniform?"""
    parts = {name: own * 2 for name, own in parts_of(NAMES[:5], shape=1 << 13).items()}
    run = Transcript(sums, parts)
    return all(uniform(second - first) for first, second in carried(run).values())


def sessions_differ(sums: SumProtocol) -> bool:
    """The same job twice: has what was sent nothing in common?"""
    first, second = (carried(Transcript(sums, parts_of(NAMES[:5], shape=1 << 13))) for _ in range(2))
    return all(uniform(second[place][0] - first[place][0]) for place in first)


@pytest.mark.parametrize("sums", MASKED, ids=repr)
@pytest.mark.parametrize("check", [every_message_is_uniform, rounds_tell_no_differences, sessions_differ])
def test_masks_hide_are_fresh_and_are_nobodys_seed(sums: SumProtocol, check: Callable[[SumProtocol], bool]) -> None:
    assert check(sums)


def test_a_missing_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert every_message_is_uniform(WithRole())
    assert not every_message_is_uniform(NoMaskSum())
    monkeypatch.setattr(pairwise_sum, "add_pair_masks", lambda *_: None)
    assert not every_message_is_uniform(vfl.PairwiseSum())
    monkeypatch.setattr(masks, "_apply", lambda *_, **__: None)
    assert not every_message_is_uniform(vfl.PairwiseSum(threshold=3))


def test_a_mask_used_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not rounds_tell_no_differences(OneMaskSum())
    add = pairwise_sum.add_pair_masks

    def of_the_first_round(total: Any, me: str, pairs: dict[str, Prg], round: int) -> None:
        for prg in pairs.values():
            prg._next = 0
        add(total, me, pairs, 0)

    monkeypatch.setattr(pairwise_sum, "add_pair_masks", of_the_first_round)
    assert not rounds_tell_no_differences(vfl.PairwiseSum())


def test_a_seeded_generator_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sessions_differ(SeededMaskSum())
    monkeypatch.setattr(
        pairwise_sum,
        "exchange_keys",
        lambda seat, pair, among, *, domain: {
            peer: bytes(31) + bytes([ord(seat.me) ^ ord(peer)]) for peer in seat.contributors if peer != seat.me
        },
    )
    assert not sessions_differ(vfl.PairwiseSum())


def opened_shares(run: Transcript, coalition: Iterable[str], target: str, keys: Any) -> tuple[list[Share], list[Share]]:
    """The coalition's shares of the target's s and b, out of what they were sent and their pair keys."""
    of_s, of_b = [], []
    for holder in sorted(coalition):
        own = next(e.message for e in run.events if e.me == holder and isinstance(e.message, Commits))
        place = own.names.index(target)
        role = run.roles[holder]
        assert isinstance(role, DropoutMember)
        role._round = 0
        both = role._cipher(holder, target).decrypt(bytes(12), own.sealed[place], own.publics[place])
        of_s.append(Share.from_bytes(both[:SHARE_BYTES]))
        of_b.append(Share.from_bytes(both[SHARE_BYTES:]))
    return of_s, of_b


def part_from_secrets(
    y: np.ndarray, target: str, session: str, publics: dict[str, bytes], s: KeyPair, b: bytes | None
) -> np.ndarray:
    """v_k out of y_k by taking off all pair masks, and the self mask where its seed is known."""
    part = y.copy()
    for peer, public in publics.items():
        seed = s.agree(public, session=session, own=target, peer=peer, domain="pair seed 0")
        mask = Prg(seed, "pair mask").array(len(y), np.uint32)
        part += -mask if target < peer else mask
    if b is not None:
        part -= Prg(b, "self mask").array(len(y), np.uint32)
    return part


def test_with_a_threshold_that_many_and_the_active_party_learn_a_part_and_fewer_do_not(
    keys: dict[str, dict[str, bytes]],
) -> None:
    sums = vfl.PairwiseSum(threshold=3)
    run = Transcript(sums, parts_of(NAMES))
    publics = {sender: m.public for sender, m in run.seen({"a"}, Commit)}
    for target, needed in sums.coalitions(NAMES).items():
        others = sorted(needed.among)
        assert needed == Coalition(frozenset({"a"}), frozenset(NAMES[1:]) - {target}, 3)
        y = next(np.frombuffer(m.residues, "<u4") for sender, m in run.seen({"a"}, DoubleMasked) if sender == target)
        of_s, of_b = opened_shares(run, others[:3], target, keys)
        with_peers = {name: public for name, public in publics.items() if name != target}
        s, b = KeyPair.restore(of_s, threshold=3), combine(of_b, threshold=3)
        assert np.array_equal(part_from_secrets(y, target, run.session, with_peers, s, b), run.parts[target][0])
        # two shares are two points of a parabola whose value at zero is free
        with pytest.raises(vfl.errors.CryptoError):
            combine(of_b[:2], threshold=3)
        assert sums.needed(5) == 3


def late_vector_is_readable(until_silent: Any) -> bool:
    """Party "c" is called dropped, so that the active party restores s_c; then its y_c arrives. Does it show v_c?"""
    called, names, silent = threading.Event(), NAMES[:5], set[str]()
    parts, events = parts_of(names, shape=1 << 13), list[Event]()
    session: list[str] = []

    class Gone(Exception):
        pass

    class Late(DropoutMember):
        def _receive_commits(self) -> Commits:
            commits = super()._receive_commits()
            silent.add("c")
            assert called.wait(60)
            return commits

        def _receive_survivors(self, commits: Commits) -> frozenset[str]:
            raise Gone

    def watch(event: Event) -> None:
        events.append(event)
        if isinstance(event.message, Survivors):
            called.set()

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.books))
        session.append(f"{channel.session.hex()}/")
        if channel.me == "a":
            until_silent(channel, silent)
            vfl.PairwiseSum(threshold=3).role(seat).collect((1 << 13,), SPACE)
            return
        member = (Late if channel.me == "c" else DropoutMember)(seat, 3)
        try:
            member.contribute(parts[channel.me][0], SPACE)
        except Gone:
            return

    run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=30, observe=watch)
    at_active = [e for e in events if e.me == "a" and e.direction == "recv"]
    publics = {e.peer: e.message.public for e in at_active if isinstance(e.message, Commit)}
    order = list(publics)
    shares = [
        Share.from_bytes(e.message.shares[order.index("c")]) for e in at_active if isinstance(e.message, SeedShares)
    ]
    late = next(e.message for e in events if e.me == "c" and isinstance(e.message, DoubleMasked))
    with_peers = {name: public for name, public in publics.items() if name != "c"}
    s = KeyPair.restore(shares, threshold=3)
    read = part_from_secrets(np.frombuffer(late.residues, "<u4"), "c", session[0], with_peers, s, None)
    if np.array_equal(read, parts["c"][0]):
        return True
    assert uniform(read - parts["c"][0])
    return False


def test_a_late_vector_stays_hidden(until_silent: Any) -> None:
    assert not late_vector_is_readable(until_silent)


def test_a_late_vector_without_self_mask_is_caught(until_silent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = masks._apply

    def without_self_mask(total: Any, seed: bytes, label: str, *, add: bool) -> None:
        if label != "self mask":
            apply(total, seed, label, add=add)

    monkeypatch.setattr(masks, "_apply", without_self_mask)
    assert late_vector_is_readable(until_silent)
