"""Pairs of trees along which masked sums are added: which sums a coalition of parties learns from them."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.prg import Prg
from securevfl.crypto.sum_trees import (
    SumTree,
    are_totally_different,
    balanced_tree,
    build_trees,
    chain_tree,
    learned_sums,
    smallest_coalition,
    star_tree,
)
from securevfl.errors import ConfigError


def random_tree(q, rng, root=0, parties=None):
    """Return a random tree: each party sends to a random one of the parties that follow in a random order."""
    order = [p for p in (parties or range(q)) if p != root]
    rng.shuffle(order)
    order.append(root)
    return SumTree(tuple(((p, rng.choice(order[i + 1 :])),) for i, p in enumerate(order[:-1])), root)


def transcripts(tree, parts):
    """Run the schedule step by step and record the values that each party receives."""
    sums_by_party = dict(parts)
    received = {p: [] for p in tree.parties}
    for level in tree.levels:
        for sender, to in level:
            received[to].append(sums_by_party[sender])
            sums_by_party[to] = [(a + b) for a, b in zip(sums_by_party[to], sums_by_party[sender], strict=True)]
    return received


def unit(q2, *ones):
    return [1 if i in ones else 0 for i in range(q2)]


def knowledge(t1, t2, coalition):
    """Return the linear combinations of values and masks (v_0..v_q-1, r_0..r_q-1) that the coalition knows."""
    q = len(t1.parties)
    first = transcripts(t1, {p: unit(2 * q, p, q + p) for p in range(q)})
    second = transcripts(t2, {p: unit(2 * q, q + p) for p in range(q)})
    rows = [unit(2 * q, p) for p in coalition] + [unit(2 * q, q + p) for p in coalition]
    for p in coalition:
        rows += first[p] + second.get(p, [])
    return rows


def reduce(rows):
    """Return the row echelon form over the rationals: pivot column -> row."""
    basis = {}
    for row in rows:
        row = [Fraction(x) for x in row]
        row = residual(row, basis)
        pivot = next((i for i, x in enumerate(row) if x), None)
        if pivot is not None:
            basis[pivot] = [x / row[pivot] for x in row]
    return basis


def residual(row, basis):
    for i in range(len(row)):
        if row[i] and i in basis:
            row = [a - row[i] * b for a, b in zip(row, basis[i], strict=True)]
    return row


def spans(basis, row):
    return not any(residual([Fraction(x) for x in row], basis))


def coalitions(q, without=None):
    others = [p for p in range(q) if p != without]
    for k in range(1, len(others) + 1):
        yield from itertools.combinations(others, k)


def pairs(q):
    rng = random.Random(q)
    trees = build_trees(q, q - 1, b"pairs")
    yield trees.T1, trees.T2
    yield trees.T1, trees.T1
    yield random_tree(q, rng), random_tree(q, rng)
    yield chain_tree([*range(1, q), 0]), star_tree(range(q), 0)


@pytest.mark.parametrize("q", [3, 4, 5, 6, 7])
def test_smallest_coalitions_against_every_coalition(q):
    for t1, t2 in pairs(q):
        bases = {C: reduce(knowledge(t1, t2, C)) for C in coalitions(q)}
        for l in range(q):
            learn = [set(C) for C in coalitions(q, l) if spans(bases[C], unit(2 * q, l))]
            if l == t1.root:
                assert smallest_coalition(t1, t2, l) is None
                assert not learn
                continue
            smallest = smallest_coalition(t1, t2, l)
            assert (smallest is None) == (not learn)
            if smallest is not None:
                assert set(smallest) in learn
                assert all(smallest <= C for C in learn)


@pytest.mark.parametrize("q", [3, 4, 5])
def test_learned_sums_against_linear_algebra(q):
    for t1, t2 in pairs(q):
        for C in coalitions(q):
            basis = reduce(knowledge(t1, t2, C))
            learned = learned_sums(t1, t2, C)
            others = [p for p in range(q) if p not in C]
            for k in range(1, len(others) + 1):
                for S in itertools.combinations(others, k):
                    inside = [part for part in learned if part <= set(S)]
                    assert spans(basis, unit(2 * q, *S)) == (sum(map(len, inside)) == k)


@pytest.mark.parametrize(("q", "modulus"), [(3, 2), (3, 3), (4, 2)])
def test_views_depend_on_nothing_but_the_learned_sums(q, modulus):
    """All masks and all values in Z_m: two inputs give a coalition equally distributed views exactly if the coalition's
    values and the learned sums agree. This is perfect secrecy, not a matter of linear combinations."""
    everything = list(itertools.product(range(modulus), repeat=q))
    for t1, t2 in pairs(q):
        views = {}
        for v in everything:
            for r in everything:
                first = transcripts(t1, {p: [v[p] + r[p]] for p in range(q)})
                second = transcripts(t2, {p: [r[p]] for p in range(q)})
                views[v, r] = {p: [x % modulus for [x] in first[p] + second.get(p, [])] for p in range(q)}
        for C in coalitions(q):
            learned = learned_sums(t1, t2, C)
            law = {}
            for v in everything:
                seen = Counter(tuple((v[p], r[p], *views[v, r][p]) for p in C) for r in everything)
                known = (tuple(v[p] for p in C), tuple(sum(v[p] for p in S) % modulus for S in learned))
                law.setdefault(known, []).append(frozenset(seen.items()))
            assert all(len(set(same)) == 1 for same in law.values())
            assert len({same[0] for same in law.values()}) == len(law)


def lone_parties_learn(t1, t2):
    q = len(t1.parties)
    return any(spans(reduce(knowledge(t1, t2, (c,))), unit(2 * q, l)) for c in range(q) for l in range(q) if l != c)


@pytest.mark.parametrize("q", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("seed", [b"a", b"b", b"c"])
def test_no_single_party_learns_a_value_from_two_trees(q, seed):
    trees = build_trees(q, 0, seed)
    assert not lone_parties_learn(trees.T1, trees.T2)
    assert lone_parties_learn(trees.T1, trees.T1)
    sizes = [[len(smallest_coalition(trees.T1, t2, l)) for l in range(1, q)] for t2 in (trees.T2, trees.T1)]
    assert min(sizes[0]) >= 2
    assert min(sizes[1]) == 1
    assert sum(sizes[1]) < sum(sizes[0])


def test_definition_2_alone_does_not_protect():
    """The two trees are totally different (definition 2 of the paper), and yet party 0
    receives party 2's value in both.
    """
    t1, t2 = SumTree((((1, 0),), ((2, 0),)), 0), SumTree((((2, 0),), ((1, 0),)), 0)
    assert are_totally_different(t1, t2)
    assert learned_sums(t1, t2, {0}) == [{1}, {2}]
    assert lone_parties_learn(t1, t2)


@settings(max_examples=60)
@given(q=st.integers(3, 64), seed=st.binary(max_size=8), data=st.data())
def test_built_trees_are_balanced_and_totally_different(q, seed, data):
    root = data.draw(st.integers(0, q - 1))
    trees = build_trees(q, root, seed)
    for tree in (trees.T1, trees.T2):
        assert tree.parties == set(range(q))
        assert tree.root == root
        assert tree.depth == math.ceil(math.log2(q))
        assert all(len({p for send in level for p in send}) == 2 * len(level) for level in tree.levels)
    assert are_totally_different(trees.T1, trees.T2)
    common = [S for S in trees.T1.subtrees() for U in trees.T2.subtrees() if S == U]
    assert all(len(S) == q for S in common)
    for c in range(q):
        expected = [set(range(q)) - {root}] if c == root else []
        assert learned_sums(trees.T1, trees.T2, {c}) == expected
    assert trees == build_trees(q, root, seed)


def test_labels_are_shuffled_by_the_seed():
    assert len({build_trees(9, 0, bytes([i])).T1 for i in range(20)}) == 20
    heads = Counter(build_trees(5, 0, bytes([i])).T1.levels[0][0] for i in range(200))
    assert len(heads) > 10


def test_total_difference_by_leaf_sets():
    a, b, c = balanced_tree([0, 1, 2, 3], 0), balanced_tree([0, 2, 1, 3], 0), balanced_tree([0, 2, 3, 1], 0)
    assert a.subtrees() == {frozenset({0, 1}), frozenset({2, 3}), frozenset(range(4))}
    assert are_totally_different(a, b)
    assert not are_totally_different(a, a)
    assert are_totally_different(a, c)
    assert star_tree(range(4), 0).subtrees() == {frozenset(range(4))}
    assert chain_tree([2, 1, 0]).subtrees() == {frozenset({1, 2}), frozenset({0, 1, 2})}


@given(st.integers(1, 20), st.integers(0, 2**32), st.sampled_from(["balanced", "star", "chain", "random"]))
def test_every_topology_walks_to_the_plain_sum(q, seed, kind):
    rng = random.Random(seed)
    order = rng.sample(range(q), q)
    tree = {
        "balanced": lambda: balanced_tree(order, order[0]),
        "star": lambda: star_tree(order, order[0]),
        "chain": lambda: chain_tree(order),
        "random": lambda: random_tree(q, rng),
    }[kind]()
    parts = {p: Prg.fresh("part").array(3, np.uint64) for p in range(q)}
    plain = [sum(int(parts[p][i]) for p in parts) % 2**64 for i in range(3)]
    sums_by_party = {}

    def receive_all(party):
        sums_by_party[party] = parts[party]
        for source in tree.sources(party):
            assert tree.target(source) == party
            receive_all(source)
            sums_by_party[party] = sums_by_party[party] + sums_by_party[source]

    receive_all(tree.root)
    assert sums_by_party[tree.root].tolist() == plain
    assert tree.target(tree.root) is None


@pytest.mark.parametrize(
    ("levels", "root"),
    [
        ((((1, 0), (1, 2)),), 0),  # sends twice
        ((((1, 0),), ((1, 0),)), 0),  # in two levels
        ((((1, 0),), ((2, 1),)), 0),  # receives after it has sent
        ((((1, 0), (2, 1)),), 0),  # receives while it sends
        ((((0, 1),),), 0),  # the root sends
        ((((1, 2),),), 0),  # ends elsewhere
        ((((1, 1),),), 0),  # to itself
    ],
)
def test_schedules_that_are_no_trees_are_refused(levels, root):
    with pytest.raises(ConfigError):
        SumTree(levels, root)


def test_bad_requests_are_refused():
    for q, root in ((2, 0), (3, 3), (3, -1)):
        with pytest.raises(ConfigError):
            build_trees(q, root, b"")
    for order, root in (([0, 1, 1], 0), ([1, 2], 0), ([], 0)):
        with pytest.raises(ConfigError):
            balanced_tree(order, root)
    for t1, t2 in ((chain_tree([1, 0]), chain_tree([0, 1])), (chain_tree([1, 0]), chain_tree([2, 1, 0]))):
        with pytest.raises(ConfigError):
            learned_sums(t1, t2, {0})
        with pytest.raises(ConfigError):
            smallest_coalition(t1, t2, 1)
        with pytest.raises(ConfigError):
            are_totally_different(t1, t2)
