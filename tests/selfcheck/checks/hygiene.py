"""Checks of keys and secrets: sizes, separate keys, no secret in texts, and that secret keys stay with their owner.

The library writes no core file and sets no handler that would. If the operating system kills a process and writes its
memory to disk, the library cannot prevent it.
"""

from __future__ import annotations

import copy
import io
import logging
import math
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import gmpy2
import numpy as np

from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto.curve import Blinder
from securevfl.crypto.kernel import gradient
from securevfl.crypto.kernel import shares as kernel_shares
from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.kernel.residues import MAX_MODULUS_BITS
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.lattice import residue_encoding
from securevfl.crypto.lattice.lattice_gradient import LATTICE_PROFILE, LatticeGradient, LatticeGradientParameters
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.lattice.lattice_sum import LatticeSum
from securevfl.crypto.lattice.polynomial_ring import SealRing
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier.paillier_product import PaillierHolder, PaillierScheme
from securevfl.crypto.paillier.paillier_sum import PaillierSum
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.data import datasets
from securevfl.errors import ConfigError, CryptoError, SecureVFLError
from securevfl.families.fdml.masked_store import PayloadMasks
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedSGD
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.sums.cipher_sum import CipherSum
from securevfl.runtime import eventlog
from securevfl.runtime.codec import encode_message
from securevfl.runtime.observer import Event
from securevfl.training.simulate import simulate

_STANDARD = {2048: 54, 4096: 109, 8192: 218, 16384: 438}  # HomomorphicEncryption.org 2018, table 1, 128 bits
_TELLING = 271828.18284  # a value that no text may contain


def key_sizes() -> Outcome:
    """Check that Paillier below 2048 bits and rings below 128 bits of security are refused, from every source."""
    outcome = Outcome()
    p = gmpy2.next_prime(2**559 + 2**558)
    q = gmpy2.next_prime(p + 2**400)
    small = PublicKey(int(p * q), 4)
    for what, work in (
        ("a Paillier scheme of 1024 bits", lambda: PaillierScheme(1024)),
        ("Paillier sums of 1024 bits", lambda: PaillierSum(1024)),
        ("a Paillier key of 1024 bits", lambda: SecretKey.generate(1024)),
        ("Paillier primes of 1120 bits", lambda: SecretKey.from_primes(int(p), int(q))),
        ("a public key of another size", lambda: PublicKey.load(small.data, 2048)),
        ("an engine of 1536 bits in a job", lambda: Paillier(bits=1536)),
        ("N = 4096 with 110 bits", lambda: SealRing((55, 38, 17), 40)),
    ):
        try:
            work()
        except (ConfigError, CryptoError):
            continue
        outcome.add("size", what, "accepted")
    if sum(LATTICE_PROFILE.bits) > _STANDARD[4096]:
        outcome.add("size", "the lattice engine", "is below 128 bits")
    if _STANDARD[4096] < MAX_MODULUS_BITS:
        outcome.add("size", "rings", "more bits are allowed than the standard allows")
    key = SecretKey.generate(2048)
    if abs(int(key._p - key._q)).bit_length() < 1024 - 100:  # FIPS 186-5, A.1.3
        outcome.add("size", "Paillier primes", "lie so close that n falls to Fermat's method")
    ring = LatticeGradientParameters().ring
    if str(ring.context.first_context_data().qualifiers().sec_level).split(".")[-1] not in ("TC128", "TC192"):
        outcome.add("size", "the lattice engine", "SEAL does not hold this ring to 128 bits")
    return outcome


def _secret_objects() -> list[tuple[str, Any, list[int]]]:
    """Return secret objects with the numbers that their text must not contain."""
    key = SecretKey.generate(2048)
    pair = KeyPair()
    private = int.from_bytes(pair._private.private_bytes_raw(), "little")
    blinder = Blinder()
    raw = bytes(range(100, 132))
    numbers = list(key.parts_for_workers())
    return [
        ("Paillier key", key, numbers),
        ("Paillier holder", PaillierHolder(key), numbers),
        ("lattice holder", LatticeGradient().keygen(), []),
        ("holder on the kernel", KernelGradient().keygen(), []),
        ("lattice sum holder", LatticeSum().sum_keygen(), []),
        ("masks of stored payloads", PayloadMasks({"shop": raw}), [int.from_bytes(raw, "little")]),
        ("key pair", pair, [private]),
        ("blinder", blinder, [int.from_bytes(blinder._scalar, "little")]),
        ("keystream", Prg(raw, "x"), [int.from_bytes(derive_key(raw, "prg", "x"), "little")]),
    ]


def secrets_are_silent() -> Outcome:
    """Check that no secret is in repr, str, attributes, logs or pickles, and that secrets cannot be copied."""
    outcome = Outcome()
    for name, thing, numbers in _secret_objects():
        text = f"{thing!r} {thing!s} {[thing]!r}"
        if len(text) > 400 or any(_shows(text, number) for number in numbers):
            outcome.add("silent", name, "shows in its repr")
        for what, work in (("pickled", pickle.dumps), ("copied", copy.deepcopy), ("copied", copy.copy)):
            if _succeeds(work, thing):
                outcome.add("silent", name, f"can be {what}")
    return outcome


def _succeeds(work: Callable[[Any], Any], thing: Any) -> bool:
    try:
        work(thing)
    except Exception:  # any refusal: by this library, or by an object of another library inside
        return False
    return True


def _shows(text: str, number: int) -> bool:
    size = -(-number.bit_length() // 8)
    raw = (number.to_bytes(size, "big"), number.to_bytes(size, "little"))
    return any(form in text for form in (str(number), f"{number:x}", *(str(data)[2:-1] for data in raw)))


def errors_are_silent() -> Outcome:
    """Check that errors about bad values contain no value."""
    outcome = Outcome()
    bad = np.full((4, 1), _TELLING)
    paillier = PaillierScheme(2048).keygen()
    sums = PaillierSum(2048).sum_keygen()
    ring = LatticeGradient().keygen()
    ring_sums = LatticeSum().sum_keygen()
    for what, work in (
        ("Paillier encrypt", lambda: paillier.encrypt(bad, bound=1.0)),
        ("Paillier sum", lambda: PaillierSum(2048).adder(sums.public).encrypt(bad[:, 0], bound=1.0, terms=2)),
        ("lattice encrypt", lambda: ring.encrypt(bad, bound=1.0)),
        ("lattice sum", lambda: LatticeSum().adder(ring_sums.public).encrypt(bad[:, 0], bound=1.0, terms=2)),
        ("a direct sum", lambda: _masked(bad)),
    ):
        try:
            work()
        except SecureVFLError as error:
            if "271828" in str(error) or "2.718" in str(error):
                outcome.add("silent", what, "the error shows the value")
        else:
            outcome.add("refusal", what, "a value out of range is accepted")
    return outcome


def _masked(bad: np.ndarray[Any, Any]) -> None:
    from securevfl.crypto.fixed_point_ring import to_ring

    to_ring(bad, 1.0, 4)


@contextmanager
def captured_keys() -> Iterator[list[tuple[str, bytes]]]:
    """Collect the secret keys made while the block runs, as bytes that must not be found anywhere: name and pattern."""
    patterns: list[tuple[str, bytes]] = []
    generate = SecretKey.from_primes.__func__  # type: ignore[attr-defined]

    def from_primes(cls: type[SecretKey], p: int, q: int) -> SecretKey:
        key: SecretKey = generate(cls, p, q)
        for what, number in (("p", p), ("q", q), ("lambda", math.lcm(int(p) - 1, int(q) - 1))):
            size = -(-int(number).bit_length() // 8)
            raw = int(number).to_bytes(size, "big")
            patterns.extend([(f"Paillier {what}", raw[8:40]), (f"Paillier {what}", raw[::-1][8:40])])
            patterns.append((f"Paillier {what}", str(int(number)).encode()[10:60]))
        return key

    pair, ring_pair = vars(kernel_shares)["keypair"], SealRing.keypair

    def keypair(*arguments: Any) -> Any:
        secret, first = pair(*arguments)
        ternary = np.asarray(secret).ravel()[:64]
        patterns.extend(("key on the kernel", ternary.astype(kind).tobytes()) for kind in ("<f8", "<f4", "<i8", "i1"))
        return secret, first

    def residues(self: Any, second: Any) -> Any:
        secret, first = ring_pair(self, second)
        patterns.extend((RINGS[self.bits], row[:8].tobytes()) for row in secret)
        packed = (residue_encoding.pack(row[None, :8], [p]) for row, p in zip(secret, self.key_primes, strict=True))
        patterns.extend((RINGS[self.bits], pattern) for pattern in packed)
        return secret, first

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(SecretKey, "from_primes", classmethod(from_primes)))
        stack.enter_context(mock.patch.object(SealRing, "keypair", residues))
        for module in (gradient, kernel_shares):
            stack.enter_context(mock.patch.object(module, "keypair", keypair))
        yield patterns


RINGS = defaultdict(lambda: "key of shares", {59: "key of products", 53: "key of sums"})  # by the bits of plaintexts
ALL_SECRETS = {"Paillier p", "Paillier q", "Paillier lambda", "key of products", "key of sums"}
SHARED: dict[type[ShareScheme], str] = {KernelShares: "key on the kernel", LatticeShares: "key of shares"}


PROTOCOLS = (
    Protocol(sum=CipherSum(engine=Ckks()), residual=Ckks()),
    Protocol(sum=CipherSum(engine=Ckks()), residual=Paillier(bits=2048)),
    Protocol(sum=CipherSum(engine=Ckks()), residual=Ckks(library="seal")),
)


def _runs() -> Iterator[Protocol]:
    """Yield runs of every protocol that generates a key, with each library."""
    yield from PROTOCOLS
    yield from (Protocol(shares=Shares(chunk=1, library=library)) for library in SHARE_SCHEMES)


def keys_stay_home() -> Outcome:
    """Check that no byte of a secret key is in any frame, log or file of a run, a saved model or a report."""
    from securevfl.base.files import write_json
    from securevfl.runtime.network import Network
    from securevfl.training.json_report import report

    outcome = Outcome()
    rows = np.arange(96, dtype=np.intp)
    tables = [party.take(rows) for party in datasets.breast_cancer(parties=3)]
    log, frames = io.StringIO(), []
    handler = eventlog.write_to(log, logging.DEBUG)
    try:
        with captured_keys() as keys, tempfile.TemporaryDirectory() as folder:
            for number, protocol in enumerate(_runs()):
                job = Job(model=Logistic(), optimizer=FedSGD(lr=0.1), protocol=protocol, batch_size=48, epochs=1)
                events: list[Event] = []
                run = simulate(job, tables, workers=1, observe=events.append)
                frames += [encode_message(event.message) for event in events]
                run.save(Path(folder) / str(number))
                write_json(Path(folder) / f"{number}.json", report(run, network=Network(), lacking={}))
            files = [path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()]
    finally:
        eventlog.LOGGER.removeHandler(handler)
    expected = ALL_SECRETS | set(SHARED.values())
    for name in sorted(expected - {name for name, _ in keys}):
        outcome.add("seen", name, "was not seen being made, so the check would not know it")
    for what, texts in (("a frame", frames), ("a file", files), ("the log", [log.getvalue().encode()])):
        for name, pattern in keys:
            if any(pattern in text for text in texts):
                outcome.add("keys", name, f"appears in {what}")
    return outcome


def keys_differ() -> Outcome:
    """Check that keys of two runs, two purposes and two labels differ, and so do their streams."""
    outcome = Outcome()
    key = bytes(range(32))
    streams = [Prg(key, label).array(8, np.uint64).tobytes() for label in ("pair mask", "self mask")]
    derived = [derive_key(key, *context) for context in (("a", 1), ("a", 2), ("a1",), (b"a", 1))]
    if len(set(streams)) < 2 or len(set(derived)) < 4:
        outcome.add("keys", "keystreams", "two purposes share one stream")
    a, b = KeyPair(), KeyPair()
    agreed = [
        a.agree(b.public, session=session, party="a", peer="b", domain=domain)
        for session, domain in (("1", "x"), ("2", "x"), ("1", "y"))
    ]
    if len(set(agreed)) < 3 or a.public == b.public:
        outcome.add("keys", "agreement", "two sessions or purposes share one key")
    if Prg.fresh("x").array(8, np.uint64).tobytes() == Prg.fresh("x").array(8, np.uint64).tobytes():
        outcome.add("keys", "keystreams", "two fresh keystreams are one")
    if LatticeGradient().keygen().public == LatticeGradient().keygen().public:
        outcome.add("keys", "lattice", "two keys are one")
    return outcome


def streams_serve_once() -> Outcome:
    """Check that a stream number is given out once."""
    outcome = Outcome()
    prg = Prg(bytes(32), "x")
    prg.array(4, np.uint64, number=3)
    try:
        prg.array(4, np.uint64, number=3)
    except CryptoError:
        return outcome
    outcome.add("fresh", "a stream number", "is given out twice")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "key sizes": key_sizes,
    "secrets are silent": secrets_are_silent,
    "errors are silent": errors_are_silent,
    "secret keys stay home": keys_stay_home,
    "keys differ": keys_differ,
    "streams are single-use": streams_serve_once,
}
