import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.masking import masks
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.masking.masks import double_mask, unmask
from securevfl.crypto.masking.shamir import combine_many, split
from securevfl.crypto.prg import Prg
from securevfl.errors import CryptoError, LeakageError

DTYPES = [np.uint16, np.uint32, np.uint64]


class Seeds:
    """The seeds of one sum among these parties."""

    def __init__(self, names):
        self.of_self = {name: os.urandom(32) for name in names}
        self.of_pair = {frozenset((a, b)): os.urandom(32) for a in names for b in names if a < b}

    def pairs(self, name):
        return {peer: self.of_pair[frozenset((name, peer))] for peer in self.of_self if peer != name}

    def mask(self, name, values):
        return double_mask(name, values, self.of_self[name], self.pairs(name))


def values(names, dtype, shape=(5,)):
    rng = np.random.default_rng(1)
    return {name: rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True) for name in names}


def collect(seeds, sent, dropped):
    """What a collector does: adds what arrived and opens the seeds it needs."""
    survivors = [name for name in sent if name not in dropped]
    total = np.sum([sent[name] for name in survivors], axis=0, dtype=next(iter(sent.values())).dtype)
    opened = {gone: {name: seeds.pairs(gone)[name] for name in survivors} for gone in dropped}
    return unmask(total, {name: seeds.of_self[name] for name in survivors}, opened)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_the_sum_of_the_survivors_comes_out(dtype, data):
    names = data.draw(st.lists(st.text(max_size=4), min_size=2, max_size=8, unique=True))
    dropped = set(data.draw(st.permutations(names))[: data.draw(st.integers(0, len(names) - 2))])
    shape = data.draw(st.sampled_from([(0,), (1,), (7,), (3, 4)]))
    seeds, v = Seeds(names), values(names, dtype, shape)
    sent = {name: seeds.mask(name, v[name]) for name in names}
    modulus = 2 ** (8 * np.dtype(dtype).itemsize)
    plain = sum((v[name].astype(object) for name in names if name not in dropped), np.zeros(shape, object)) % modulus
    got = collect(seeds, sent, dropped)
    assert got.dtype == dtype
    assert np.array_equal(got.astype(object), plain)


def test_a_masked_vector_is_the_formula_of_the_paper():
    names = ["b", "a", "c"]
    seeds, v = Seeds(names), values(names, np.uint64)
    expected = v["b"] + Prg(seeds.of_self["b"], "self mask").array(5, np.uint64)
    expected -= Prg(seeds.pairs("b")["a"], "pair mask").array(5, np.uint64)
    expected += Prg(seeds.pairs("b")["c"], "pair mask").array(5, np.uint64)
    before = v["b"].copy()
    assert np.array_equal(seeds.mask("b", v["b"]), expected)
    assert np.array_equal(v["b"], before)


def test_seeds_from_agreement_and_from_shares():
    names = ["a", "b", "c", "d", "e"]
    pairs = {name: KeyPair() for name in names}
    seeds, v = Seeds(names), values(names, np.uint32)
    for both in seeds.of_pair:
        a, b = both
        seeds.of_pair[both] = pairs[a].agree(pairs[b].public, session="s", own=a, peer=b, domain="sum")
    shares = {n: split(seeds.of_self[n], threshold=3, holders=5) for n in names}
    sent = {n: seeds.mask(n, v[n]) for n in names}
    survivors = ["a", "c", "d"]
    held = combine_many([[shares[n][names.index(m)] for m in survivors] for n in survivors], threshold=3)
    seeds.of_self = dict(zip(survivors, held, strict=True)) | {n: bytes(32) for n in ("b", "e")}
    assert np.array_equal(collect(seeds, sent, {"b", "e"}), v["a"] + v["c"] + v["d"])


def late_arrival_shows(self_seed):
    """A party is called dropped, its pair seeds are opened, then its vector arrives. Is the vector readable?"""
    names = ["a", "b", "c"]
    seeds, v = Seeds(names), values(names, np.uint64)
    y = double_mask("b", v["b"], self_seed, seeds.pairs("b"))
    y -= Prg(seeds.pairs("c")["b"], "pair mask").array(5, np.uint64)
    y += Prg(seeds.pairs("a")["b"], "pair mask").array(5, np.uint64)
    without_known_self = y - Prg(bytes(32), "self mask").array(5, np.uint64)
    return np.array_equal(without_known_self, v["b"])


def test_the_self_mask_protects_a_late_vector():
    assert late_arrival_shows(bytes(32))
    assert not late_arrival_shows(os.urandom(32))


def masked_is_uniform():
    y = Seeds(["a", "b"]).mask("a", np.zeros(1 << 17, np.uint64))
    counts = np.bincount(y.view(np.uint8), minlength=256)
    return ((counts - 4096) ** 2 / 4096).sum() < 450  # 255 degrees: once in 1e12


def test_a_masked_vector_is_uniform_and_one_without_masks_is_caught(monkeypatch):
    assert masked_is_uniform()
    monkeypatch.setattr(masks, "_apply", lambda *args, **kwargs: None)
    assert not masked_is_uniform()


def test_missing_or_contradicting_seeds_are_refused():
    total = np.zeros(3, np.uint64)
    own = {name: os.urandom(32) for name in ("a", "b")}
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
