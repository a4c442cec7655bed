"""Messages of masked sums are recomputed from each party's recorded entropy and private keys.

A mask may look uniform and never repeat, and still be computed from 32 random bits, or from none. Here a slow
reference computes every masked message of a run from the parts and the recorded entropy, and the messages are compared.
The bits of the same masks are then tested by `statistics.bitwise`, independently of the reference.

derived     a message differs from the one computed from the entropy
bound       encrypted bytes can be decrypted in another position than theirs
bits        a bit of a mask is biased, or depends on another bit of the same or of the next random number
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from securevfl.audit.recording.protocol_record import COLLECTS
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.recording.transcript_recording import record_sum
from securevfl.audit.statistics import Battery
from securevfl.audit.transcript_checks import Outcome
from securevfl.protocols.number_spaces import Circle, Reals, Space
from securevfl.protocols.sums.base import SumProtocol
from securevfl.protocols.sums.pairwise_sum import MaskedSummand, PairwiseSum
from securevfl.protocols.sums.residue_sums import residue_type, to_residues
from securevfl.protocols.sums.topologies import two_passes
from securevfl.protocols.sums.tree_sum import MaskedPartial, MaskPartial, TreeSum
from selfcheck.bits import bits_of, bitwise
from selfcheck.checks import slow_reference
from selfcheck.entropy import Drawn, recorded

Residues = NDArray[Any]
Sent = dict[str, list[Residues]]

_PASSIVES = ("P1", "P2", "P3", "P4")
_ROUNDS = 3


def _play(protocol: SumProtocol, space: Space, rows: int) -> tuple[Transcript, Drawn, list[dict[str, Residues]]]:
    """Run three exchanges. Return the transcript, the entropy, and the parts as residues."""
    generator = np.random.default_rng(5)
    parts: list[dict[str, NDArray[Any]]] = []
    for _ in range(_ROUNDS):
        values = {name: generator.uniform(0, 100, (rows, 1)) for name in _PASSIVES}
        parts.append(values if isinstance(space, Reals) else {k: v.astype(np.uint32) for k, v in values.items()})
    with recorded() as drawn:
        transcript = record_sum(protocol, parts, space)
    return (
        transcript,
        drawn,
        [
            {name: to_residues(values, space, len(_PASSIVES)) for name, values in contributions.items()}
            for contributions in parts
        ],
    )


def _sent(transcript: Transcript, kind: type[Any], like: Residues) -> Sent:
    """Collect the residues of each party's messages of one kind, in order."""
    residues: Sent = defaultdict(list)
    for event in transcript.received:
        if isinstance(event.message, kind):
            raw = event.message.residues
            residues[event.peer].append(np.frombuffer(raw, like.dtype.newbyteorder("<")).reshape(like.shape))
    return residues


def _compare(outcome: Outcome, what: str, sent: Sent, expected: Sent) -> None:
    for name in _PASSIVES:
        if not all(np.array_equal(a, b) for a, b in zip(sent[name], expected[name], strict=True)):
            outcome.add("derived", name, f"{what} is not what its parts and the entropy drawn for it make")


def tree(space: Space, rows: int = 24) -> Outcome:
    """Check every message of a tree sum: each party draws one key of 32 bytes, and its masks are streams of it."""
    outcome = Outcome()
    transcript, drawn, parts = _play(TreeSum(), space, rows)
    keys = {name: drawn.of_size(name, 32) for name in _PASSIVES}
    if any(len(draws) != 1 for draws in keys.values()):
        outcome.add("derived", "all", "a party's masks come of other draws than one of 32 bytes")
        return outcome
    like = next(iter(parts[0].values()))
    names = (COLLECTS, *_PASSIVES)
    for kind, shape in zip((MaskedPartial, MaskPartial), two_passes("tree", len(names)), strict=True):
        expected: Sent = defaultdict(list)
        for t, contributions in enumerate(parts):
            partials = {name: slow_reference.stream(keys[name][0], "tree sum", t, like).copy() for name in _PASSIVES}
            partials[COLLECTS] = np.zeros_like(like)
            for name in _PASSIVES if kind is MaskedPartial else ():
                partials[name] += contributions[name]
            for sender, receiver in (send for level in shape.levels for send in level):
                expected[names[sender]].append(partials[names[sender]].copy())
                partials[names[receiver]] += partials[names[sender]]
        _compare(outcome, kind.__name__, _sent(transcript, kind, like), expected)
    return outcome


def _pair_key(
    drawn: Drawn, party: str, peer: str, session: str, domain: str, number: int = 0
) -> tuple[bytes, X25519PrivateKey]:
    private, public = drawn.keys[party][number], _public(drawn, peer, number)
    return slow_reference.agreed(private, public, session=session, party=party, peer=peer, domain=domain), private


def _session(transcript: Transcript) -> str:
    (session,) = transcript.protocol_record.sessions
    return f"{session.hex()}/"


def _pair_masks(keys: dict[str, bytes], party: str, number: int, like: Residues) -> Residues:
    total = np.zeros_like(like)
    for peer, key in keys.items():
        mask = slow_reference.stream(key, "pair mask", number, like)
        total = total + mask if party < peer else total - mask
    return total


def pairwise(space: Space, rows: int = 24) -> Outcome:
    """Check every message of a pairwise sum over a star: masks are streams under the agreed keys of two parties."""
    outcome = Outcome()
    transcript, drawn, parts = _play(PairwiseSum(), space, rows)
    session, like = _session(transcript), next(iter(parts[0].values()))
    expected: Sent = {}
    for party in _PASSIVES:
        keys = {peer: _pair_key(drawn, party, peer, session, "pairwise sum")[0] for peer in _PASSIVES if peer != party}
        expected[party] = [part[party] + _pair_masks(keys, party, t, like) for t, part in enumerate(parts)]
    _compare(outcome, "MaskedSummand", _sent(transcript, MaskedSummand, like), expected)
    return outcome


def _public(drawn: Drawn, name: str, number: int) -> bytes:
    return drawn.keys[name][number].public_key().public_bytes_raw()


def bits_of_masks() -> Outcome:
    """Check every bit of the masks of each sum, over successive rows, and for each row over successive exchanges."""
    outcome, battery = Outcome(), Battery()
    for space in (Reals(), Circle(32), Circle(16)):
        for protocol, kind in (
            (TreeSum(), MaskedPartial),
            (PairwiseSum(), MaskedSummand),
        ):
            transcript, _, parts = _play(protocol, space, 400)
            like = np.zeros((400, 1), residue_type(space))
            sent = _sent(transcript, kind, like)
            name = f"{kind.__name__} of {8 * like.itemsize} bits"
            leaf = _leaf(transcript, kind)
            masks = np.stack([values - parts[t][leaf] for t, values in enumerate(sent[leaf])])
            bitwise(battery, f"{name}, by rows", bits_of(masks))
            bitwise(battery, f"{name}, by exchanges", bits_of(masks.transpose(1, 0, 2)))
    outcome.statistics("bits", "all", battery)
    return outcome


def _leaf(transcript: Transcript, kind: type[Any]) -> str:
    """Find a party that sends only its part, because it receives none from others."""
    receivers = {event.me for event in transcript.received if isinstance(event.message, kind)}
    return next(name for name in _PASSIVES if name not in receivers)


def _both(work: Callable[[Space], Outcome]) -> Callable[[], Outcome]:
    return lambda: work(Reals()).merge(work(Circle(16)))


CHECKS: dict[str, Callable[[], Outcome]] = {
    "tree masks recomputed": _both(tree),
    "pairwise masks recomputed": _both(pairwise),
    "bits of masks": bits_of_masks,
}
