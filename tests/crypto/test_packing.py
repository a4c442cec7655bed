"""Numbers that are packed into one plaintext are restored, and cross terms never reach the slots of results."""

import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.paillier import packing
from securevfl.crypto.paillier.packing import GAP_BITS, HEADROOM_BITS, PackedLayout, choose_packing, pack, unpack
from securevfl.errors import ConfigError


@given(st.integers(2, 60), st.integers(1, 9), st.data())
def test_unpack_undoes_pack(pitch, per, data):
    half = 1 << (pitch - 1)
    values = data.draw(st.lists(st.integers(-half, half - 1), min_size=1, max_size=30))
    plaintexts = list(pack(values, per, pitch))
    back = []
    for plaintext in plaintexts:
        back += unpack(plaintext, min(per, len(values) - len(back)), pitch)
    assert back == values


@pytest.mark.parametrize("bits", [2048, 3072, 4096])
@pytest.mark.parametrize("n", [1, 2, 3, 15, 256, 4096, 100_000, 1 << 24])
def test_layout_fits(bits, n):
    slots = choose_packing(bits, n)
    assert 1 <= slots.samples <= n
    assert slots.columns >= 1
    assert slots.slots * slots.pitch <= bits - HEADROOM_BITS
    for d in (1, 2, 7, 100, 1001):
        outputs, share = slots.opened_count(d), slots.share(d)
        assert share <= slots.columns
        assert -(-d // share) == outputs
        highest = slots.samples * (share - 1) + 2 * slots.samples - 2
        assert highest < slots.slots
        assert slots.target(d - 1, d) + slots.pitch <= slots.slots * slots.pitch


@pytest.mark.parametrize("n", [0, (1 << 24) + 1])
def test_layout_refuses(n):
    with pytest.raises(ConfigError):
        choose_packing(2048, n)


def outgoing(slots: PackedLayout, g, X):
    """Return the plaintexts of J^T g with plain integers: packed g times packed exponents, columns side by side."""
    n, d = X.shape
    K, share = slots.samples, slots.share(d)
    packed = list(pack(g, K, slots.pitch))
    plaintexts = [0] * slots.opened_count(d)
    for j in range(d):
        total = 0
        for i in range(n):
            total += packed[i // K] * (int(X[i, j]) << ((K - 1 - i % K) * slots.pitch))
        plaintexts[j // share] += total << (K * (j % share) * slots.pitch)
    return plaintexts


@settings(max_examples=40)
@given(
    st.integers(1, 30),
    st.integers(1, 25),
    st.integers(1, 9),
    st.sampled_from(["random", "high", "low", "mixed"]),
    st.data(),
)
def test_targets_stand_alone(n, d, K, values, data):
    slots = PackedLayout(2048, n, min(K, n))
    if slots.columns < 1:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    top_g, top_x = 1 << slots.residual_bits, (1 << slots.column_bits) - 1
    if values == "random":
        g, X = rng.integers(-top_g, top_g + 1, n), rng.integers(-top_x, top_x + 1, (n, d))
    else:
        signs = {"high": (1, 1), "low": (-1, 1), "mixed": (-1, -1)}[values]
        g, X = np.full(n, signs[0] * top_g), np.full((n, d), signs[1] * top_x)
    expected = (g.astype(object) @ X.astype(object)).tolist()
    half = 1 << (slots.width - 1)
    plaintexts = [m + slots.offset for m in outgoing(slots, g, X)]
    for m in plaintexts:
        assert 0 <= m < 1 << (2048 - HEADROOM_BITS)
        for slot in range(slots.slots):
            assert (m >> (slot * slots.pitch + slots.width)) & ((1 << GAP_BITS) - 1) == 0
    got = [((plaintexts[j // slots.share(d)] >> slots.target(j, d)) & (2 * half - 1)) - half for j in range(d)]
    assert got == expected


def carries(rng, rounds: int) -> int:
    """Count how often the carry of a cross term reaches the slot of a result, under masks uniform mod n."""
    slots = PackedLayout(2048, 60, 6)
    modulus = secrets.randbits(2048) | 1 | 1 << 2047
    half, count = 1 << (slots.width - 1), 0
    for _ in range(rounds):
        g = rng.integers(-(1 << slots.residual_bits), (1 << slots.residual_bits) + 1, 60)
        X = rng.integers(-(1 << slots.column_bits) + 1, 1 << slots.column_bits, (60, 2))
        expected = (g.astype(object) @ X.astype(object)).tolist()
        for m in outgoing(slots, g, X):
            r = secrets.randbelow(modulus)
            v = (m + slots.offset + r) % modulus
            for j in range(2):
                target = slots.target(j, 2)
                got = (((v >> target) - (r >> target)) & (2 * half - 1)) - half
                count += got != expected[j]
    return count


def test_the_gap_swallows_carries():
    assert carries(np.random.default_rng(9), 30) == 0


def test_carries_without_a_gap_are_caught(monkeypatch):
    monkeypatch.setattr(packing, "GAP_BITS", 0)
    assert carries(np.random.default_rng(9), 30) > 0
