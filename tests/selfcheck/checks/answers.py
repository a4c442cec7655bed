"""Known answers: keys, streams and first weights are compared with a slow reference and with their specification.

derived     a value differs from its specification, given the drawn entropy, or does not depend on all inputs
bits        a bit of a random number is biased, or depends on another
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from securevfl.audit.statistics import Battery
from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import Prg
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.families.fdskl.random_features import RandomFrequencies
from securevfl.models.linear_block import starting_weights
from securevfl.protocols.residuals.defences import Gaussian, uniforms
from selfcheck.bits import bits_of, bits_of_numbers, bitwise
from selfcheck.checks import slow_reference
from selfcheck.entropy import recorded

_KEY = bytes(range(7, 39))
_LONG = (2**16 + 520) // 8 + 3  # words of a stream that is longer than the pieces generated at once
_SUBCHANNEL = "0123456789abcdef" * 2 + "/to a worker with a name of some length"


def streams() -> Outcome:
    """Check streams of any length and number, fresh streams, and the random features of a kernel model."""
    outcome = Outcome()
    for number in (0, 1, 2**40):
        long = Prg(_KEY, "label").array(_LONG, np.uint64, number=number)
        if not np.array_equal(long, slow_reference.stream(_KEY, "label", number, long)):
            outcome.add("derived", "keystreams", f"stream {number} is not ChaCha20's under the key of its label")
    with recorded() as drawn:
        streams = {label: Prg.fresh(label).array(40, np.uint32) for label in ("a fresh one", "another")}
    draws = drawn.here()
    if [len(draw) for draw in draws] != [32, 32]:
        outcome.add("derived", "keystreams", "a fresh keystream draws something else than 32 bytes")
    else:
        for key, (label, got) in zip(draws, streams.items(), strict=True):
            if not np.array_equal(got, slow_reference.stream(key, label, 0, got)):
                outcome.add("derived", "keystreams", f"{label}: not the stream of the key that was drawn for it")
    model = Kernel(gamma=0.5, blocks=1, block_size=64)
    w = RandomFrequencies(model, _KEY, 3).w("bank", 0)
    key = slow_reference.derived(_KEY, "fdskl", "bank", 0)
    words = slow_reference.stream(key, "frequencies", 0, np.empty((3, 64), np.uint64)) >> np.uint64(11)
    if not np.array_equal(w, model.frequencies((words.astype(np.float64) + 0.5) * 2.0**-53)):
        outcome.add("derived", "kernel", "random features are not those of the party's key")
    return outcome


def agreed_keys() -> Outcome:
    """Check the keys of two parties for short and long contexts, keys derived from them, and fresh private keys."""
    outcome = Outcome()
    privates = [X25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in (3, 4)]
    pairs = []
    for private in privates:
        pair = KeyPair.__new__(KeyPair)
        pair._private, pair.public = private, private.public_key().public_bytes_raw()
        pairs.append(pair)
    for party, peer in (("bank", "shop"), ("shop", "bank"), ("bank", "telco"), ("bank" * 20 + "1", "bank" * 20 + "2")):
        for session, domain in (
            (_SUBCHANNEL, "pairwise sum"),
            (_SUBCHANNEL + "2", "pairwise sum"),
            (_SUBCHANNEL, "shares" * 20),
        ):
            got = pairs[0].agree(pairs[1].public, session=session, party=party, peer=peer, domain=domain)
            known = slow_reference.agreed(
                privates[0], pairs[1].public, session=session, party=party, peer=peer, domain=domain
            )
            if got != known:
                outcome.add("derived", "agreement", "a key is not X25519's under its session, domain, names and keys")
    for parts in (("a", "bc"), ("ab", "c"), ("shares", 3, "P1"), ("shares" * 20, 3, "P1"), (b"a" * 99, 2**70)):
        if derive_key(_KEY, *parts) != slow_reference.derived(_KEY, *parts):
            outcome.add("derived", "keys", "a derived key is not HKDF's of its context")
    with recorded() as drawn:
        publics = {KeyPair().public for _ in range(256)}
    (drawn_key,) = drawn.keys.values()
    raw = [int.from_bytes(private.private_bytes_raw(), "little") >> 3 for private in drawn_key]
    battery = Battery()
    bitwise(battery, "private keys", bits_of_numbers(raw, 251))
    outcome.statistics("bits", "agreement", battery)
    if len(publics) < 256 or {private.public_key().public_bytes_raw() for private in drawn_key} != publics:
        outcome.add("derived", "agreement", "public keys are not those of the private keys made for them")
    return outcome


def first_weights() -> Outcome:
    """Check that the active party's first weights follow from every column, every target and the seed, all of them
    together."""
    outcome = Outcome()
    generator = np.random.default_rng(4)
    X, y = generator.normal(size=(30, 3)), np.sign(generator.normal(size=(30, 1)))
    first = starting_weights(X, X, y, 1)
    if not np.array_equal(first, starting_weights(X.copy(), X.copy(), y.copy(), 1)):
        outcome.add("derived", "start", "the same table gives other weights")
    other_x, other_y = X.copy(), y.copy()
    other_x[17, 1] *= 1.01
    other_y[29] *= -1
    for what, weights in (
        ("an entry of a column", starting_weights(other_x, X, y, 1)),
        ("a label", starting_weights(X, X, other_y, 1)),
        ("the seed", starting_weights(X, X, y, 2)),
    ):
        if np.isclose(weights[:-1], first[:-1], rtol=1e-3, atol=0).any():
            outcome.add("derived", "start", f"first weights do not follow from {what}: others can compute them")
    return outcome


def noise() -> Outcome:
    """Check that noise of a defence has the stated distribution and full float precision,
    from 64 bits for each value.
    """
    outcome, battery = Outcome(), Battery()
    got = uniforms(Prg(_KEY, "noise"), (4000,))
    words = slow_reference.stream(_KEY, "noise", 0, np.empty(4000, np.uint64)) >> np.uint64(11)
    if not np.array_equal(got, (words.astype(np.float64) + 0.5) * 2.0**-53):
        outcome.add("derived", "defences", "uniform numbers are not 53 bits of the stream")
    drawn = np.floor(uniforms(Prg.fresh("noise"), (4000,)) * 2.0**53).astype(np.uint64)
    # an offset of half a step makes the lowest bit uniform as well
    bitwise(battery, "uniform numbers", bits_of(drawn)[:, 1:53])
    blurred = Gaussian(sigma=0.5).apply(np.zeros((4000, 1)), Prg.fresh("noise"))[:, 0]
    battery.add("gaussian noise: KS", float(stats.kstest(blurred / 0.5, "norm").pvalue))
    if len(np.unique(blurred)) < len(blurred):
        outcome.add("bits", "defences", "noise takes few values, so the remainder reveals g")
    outcome.statistics("bits", "defences", battery)
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "streams are known answers": streams,
    "agreed keys are known answers": agreed_keys,
    "first weights follow the table": first_weights,
    "noise is fine": noise,
}
