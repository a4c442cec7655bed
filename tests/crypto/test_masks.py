import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto import masks
from securevfl.crypto.agreement import KeyPair
from securevfl.crypto.masks import Disclosures, Masker, unmask
from securevfl.crypto.prg import Prg, derive_key
from securevfl.crypto.shamir import combine_many, split
from securevfl.errors import CryptoError, LeakageError

DTYPES = [np.uint16, np.uint32, np.uint64]


def maskers(names, kind=Masker):
    keys = {frozenset((a, b)): derive_key(bytes(32), *sorted((a, b))) for a in names for b in names if a != b}
    return {a: kind(a, {b: keys[frozenset((a, b))] for b in names if b != a}) for a in names}


def values(names, dtype, shape=(5,)):
    rng = np.random.default_rng(1)
    return {name: rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True) for name in names}


def collect(parties, sent, dropped, round):
    """What a collector does: adds what arrived and opens the seeds it needs."""
    survivors = [name for name in sent if name not in dropped]
    total = np.sum([sent[name] for name in survivors], axis=0, dtype=next(iter(sent.values())).dtype)
    return unmask(
        total,
        {name: parties[name].self_seed(round) for name in survivors},
        {gone: {name: parties[name].pair_seed(round, gone) for name in survivors} for gone in dropped},
    )


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_the_sum_of_the_survivors_comes_out(dtype, data):
    names = data.draw(st.lists(st.text(max_size=4), min_size=2, max_size=8, unique=True))
    dropped = set(data.draw(st.permutations(names))[: data.draw(st.integers(0, len(names) - 2))])
    shape = data.draw(st.sampled_from([(0,), (1,), (7,), (3, 4)]))
    parties, v = maskers(names), values(names, dtype, shape)
    sent = {name: parties[name].mask(3, v[name]) for name in names}
    modulus = 2 ** (8 * np.dtype(dtype).itemsize)
    plain = sum((v[name].astype(object) for name in names if name not in dropped), np.zeros(shape, object)) % modulus
    got = collect(parties, sent, dropped, 3)
    assert got.dtype == dtype
    assert np.array_equal(got.astype(object), plain)


def test_a_masked_vector_is_the_formula_of_the_paper():
    names = ["b", "a", "c"]
    parties, v = maskers(names), values(names, np.uint64)
    b = parties["b"]
    expected = v["b"] + Prg(b.self_seed(7), "self mask").array(5, np.uint64)
    expected -= Prg(b.pair_seed(7, "a"), "pair mask").array(5, np.uint64)
    expected += Prg(b.pair_seed(7, "c"), "pair mask").array(5, np.uint64)
    before = v["b"].copy()
    assert np.array_equal(b.mask(7, v["b"]), expected)
    assert np.array_equal(v["b"], before)
    assert b.pair_seed(7, "a") == parties["a"].pair_seed(7, "b")


def test_keys_from_agreement_and_self_seeds_from_shares():
    names = ["a", "b", "c", "d", "e"]
    pairs = {name: KeyPair() for name in names}
    parties = {
        n: Masker(
            n, {m: pairs[n].agree(pairs[m].public, session="s", own=n, peer=m, domain="sum") for m in names if m != n}
        )
        for n in names
    }
    v = values(names, np.uint32)
    shares = {n: split(parties[n].self_seed(0), threshold=3, holders=5) for n in names}
    sent = {n: parties[n].mask(0, v[n]) for n in names}
    survivors = ["a", "c", "d"]
    held = combine_many([[shares[n][names.index(m)] for m in survivors] for n in survivors], threshold=3)
    total = sent["a"] + sent["c"] + sent["d"]
    opened = {gone: {n: parties[n].pair_seed(0, gone) for n in survivors} for gone in ("b", "e")}
    got = unmask(total, dict(zip(survivors, held, strict=True)), opened)
    assert np.array_equal(got, v["a"] + v["c"] + v["d"])


class WithoutSelfMask(Masker):
    """Masks with pair masks alone, as if b_i were public."""

    def self_seed(self, round):
        return bytes(32)


class WithoutRounds(Masker):
    """Forgets the round when it derives seeds."""

    def self_seed(self, round):
        return super().self_seed(0)

    def pair_seed(self, round, peer):
        return super().pair_seed(0, peer)


def late_arrival_shows(kind):
    """A party is called dropped, its pair seeds are opened, then its vector arrives. Is the vector readable?"""
    names = ["a", "b", "c"]
    parties, v = maskers(names, kind), values(names, np.uint64)
    y = parties["b"].mask(0, v["b"])
    y -= Prg(parties["c"].pair_seed(0, "b"), "pair mask").array(5, np.uint64)
    y += Prg(parties["a"].pair_seed(0, "b"), "pair mask").array(5, np.uint64)
    without_known_self = y - Prg(bytes(32), "self mask").array(5, np.uint64)
    return np.array_equal(without_known_self, v["b"])


def rounds_show_differences(kind):
    party = maskers(["a", "b", "c"], kind)["a"]
    first, second = party.mask(0, np.zeros(4, np.uint64)), party.mask(1, np.arange(4, dtype=np.uint64))
    return np.array_equal(second - first, np.arange(4, dtype=np.uint64))


def test_the_self_mask_protects_a_late_vector():
    assert late_arrival_shows(WithoutSelfMask)
    assert not late_arrival_shows(Masker)


def test_masks_are_of_one_round():
    assert rounds_show_differences(WithoutRounds)
    assert not rounds_show_differences(Masker)
    parties = maskers(["a", "b", "c"])
    seeds = {parties["a"].pair_seed(t, peer) for t in range(5) for peer in "bc"}
    assert len(seeds | {parties["a"].self_seed(t) for t in range(5)}) == 15


def masked_is_uniform():
    y = maskers(["a", "b"])["a"].mask(0, np.zeros(1 << 17, np.uint64))
    counts = np.bincount(y.view(np.uint8), minlength=256)
    return ((counts - 4096) ** 2 / 4096).sum() < 400


def test_a_masked_vector_is_uniform_and_one_without_masks_is_caught(monkeypatch):
    assert masked_is_uniform()
    monkeypatch.setattr(masks, "_apply", lambda *args, **kwargs: None)
    assert not masked_is_uniform()


def test_a_round_masks_once():
    party = maskers(["a", "b"])["a"]
    party.mask(4, np.zeros(2, np.uint64))
    for t in (4, 3, -1):
        with pytest.raises(CryptoError, match="above 4"):
            party.mask(t, np.zeros(2, np.uint64))
    party.mask(5, np.zeros(2, np.uint64))


def test_missing_or_contradicting_seeds_are_refused():
    names = ["a", "b", "c", "d"]
    parties = maskers(names)
    total = np.zeros(3, np.uint64)
    own = {n: parties[n].self_seed(0) for n in ("a", "b")}
    for opened in (
        {"c": {"a": bytes(32)}, "d": {"a": bytes(32), "b": bytes(32)}},
        {"c": {"a": bytes(32), "b": bytes(32), "d": bytes(32)}},
        {"a": {"b": bytes(32)}},
    ):
        with pytest.raises(CryptoError):
            unmask(total, own, opened)
    for few in ({}, {"a": own["a"]}):
        with pytest.raises(LeakageError, match="two survivors"):
            unmask(total, few, {})


def test_both_masks_of_a_party_are_never_opened():
    record = Disclosures()
    record.survived("a")
    record.survived("a")
    record.dropped("b")
    with pytest.raises(CryptoError, match="'a'"):
        record.dropped("a")
    with pytest.raises(CryptoError, match="'b'"):
        record.survived("b")


def test_bad_keys_and_unknown_peers_are_refused():
    for keys in ({}, {"a": bytes(32)}, {"b": bytes(31)}):
        with pytest.raises(CryptoError):
            Masker("a", keys)
    with pytest.raises(CryptoError, match="'z'"):
        Masker("a", {"b": bytes(32)}).pair_seed(0, "z")


def test_a_masker_shows_and_pickles_nothing():
    party = Masker("a", {"b": bytes(32)})
    assert repr(party) == "<Masker, secret>"
    with pytest.raises(TypeError):
        pickle.dumps(party)
