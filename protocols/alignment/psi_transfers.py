"""The oblivious PRF of alignment by transfer extension (crypto/transfers/ot_extension.py): for all but small sets.

P_1 is the evaluator, P_i the holder of F_i; h, D and U are those of crypto/transfers/ot_extension.py.

0. P_1 -> P_i  the offer of the base transfers;  P_i -> P_1  512 choices
1. P_1 -> P_i  the seed of D, a store of x -> h(x) for x in X_1;  U, 64 bytes for each of its rows
   P_1         F_i on X_1                    P_i   F_i on its own ids

P_i sees uniform bits under computational Diffie-Hellman and the PRG. P_1 has F_i on its own ids alone, the rest is
noise to it (hashes as random oracles). An id costs P_1 83 bytes a passive party, and either end a few hashes.

What has been sent stays the same if an alignment goes on after a break: seeds, choices and D are in the journal before
anything that depends on them leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from securevfl.crypto.prg import KEY_BYTES
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.base_ot import Offerer, choose
from securevfl.crypto.transfers.okvs import Words
from securevfl.crypto.transfers.ot_extension import (
    BLOCK,
    CODE_BITS,
    ROW_BYTES,
    Holder,
    PrfEvaluator,
    fresh_choices,
    target,
)
from securevfl.errors import ProtocolError
from securevfl.protocols.alignment.psi_work import AlignmentWork, Begin, check_count, words
from securevfl.protocols.declared import Declared, Reveal, sizes
from securevfl.runtime.codec import Message
from securevfl.runtime.door import Telling


class Offer(Message, frozen=True):
    """A point of 32 bytes, Ed25519."""

    public: bytes


class Choices(Message, frozen=True):
    """512 points of 32 bytes, Ed25519."""

    points: bytes


class Question(Telling, frozen=True):
    """The head of P_1's store; corrections for its rows follow."""

    seed: bytes
    slots: int


class Corrections(Message, frozen=True):
    """U, 64 bytes for each of up to 65,536 rows."""

    rows: bytes


def declares() -> list[Declared]:
    """Declare what the messages of the transfers reveal."""
    return [
        Declared(Offer, "active", "passive", Reveal("public")),
        Declared(Choices, "passive", "active", Reveal("uniform")),
        Declared(Question, "active", "passive", Reveal("plain", "the sender's number of rows")),
        Declared(Corrections, "active", "passive", Reveal("uniform")),
    ]


def ready(work: AlignmentWork) -> bool:
    """P_1: whether the journal holds what every P_i's part of an alignment needs to go on."""
    streams = ["own", *(work.stream("pairs", passive) for passive in work.passives)]
    return all(work.journal.count(stream) for stream in streams)


def ask(work: AlignmentWork, done: dict[str, int]) -> Callable[[str], Words]:
    """P_1: sends what each P_i lacks; returns what gives F_i on P_1's ids, (n, 2)."""
    offerers = {
        passive: Offerer() for passive in work.passives if not work.journal.count(work.stream("pairs", passive))
    }
    for passive, offerer in offerers.items():
        work.channel.send(passive, Offer(offerer.offer))  # 0
    if not work.journal.count("own"):
        seed, table = okvs.encode(work.keys, target(work.keys, work.executor), work.executor)
        work.journal.append("own", seed + table.astype("<u8", copy=False).tobytes())
    own = work.journal.chunk("own", 0)
    seed, store = own[: okvs.SEED_BYTES], words(own[okvs.SEED_BYTES :])
    for passive, offerer in offerers.items():
        points = work.channel.recv(passive, Choices).points  # 0
        if len(points) != CODE_BITS * 32:
            raise ProtocolError(f"{passive} was expected to send {CODE_BITS} choices, {len(points)} bytes came")
        pairs = b"".join(first + second for first, second in offerer.pairs(points))
        work.journal.append(work.stream("pairs", passive), pairs)
    work.expect(len(work.passives) * (len(store) + work.rows))
    answers = {}
    for passive in work.passives:
        check_count(passive, "blocks", done[passive], 0, _blocks(len(store)))
        evaluator = PrfEvaluator(_pairs(work.journal.chunk(work.stream("pairs", passive), 0)), seed, store)
        work.channel.send(passive, Question(seed, len(store)), told=sizes(work.channel, passive))  # 1
        for number in range(_blocks(len(store))):
            if number < done[passive]:
                evaluator.skip(number)
            else:
                work.channel.send(passive, Corrections(evaluator.corrections(number)))  # 1
            work.did(_block_rows(len(store), number))
        answers[passive] = evaluator.answers(work.keys, work.executor)
        work.did(work.rows)
    return answers.__getitem__


def serve(work: AlignmentWork, begin: Begin) -> Callable[[], Words]:
    """P_i: takes P_1's question in; returns what gives F_i on P_i's ids, (n, 2)."""
    slots = okvs.slots(begin.rows)
    work.expect(slots + work.rows)
    if not work.journal.count("chosen"):
        choices = fresh_choices()
        bits = np.unpackbits(np.frombuffer(choices, np.uint8), bitorder="little").astype(bool).tolist()
        points, seeds = choose(work.channel.recv(work.active, Offer).public, bits)  # 0
        work.journal.append("chosen", choices + b"".join(seeds))
        work.channel.send(work.active, Choices(points))  # 0
    question = work.channel.recv(work.active, Question)  # 1
    if question.slots != slots or len(question.seed) != okvs.SEED_BYTES:
        raise ProtocolError(
            f"{work.active} was expected to ask with a store of {slots} slots for its {begin.rows} rows, "
            f"{question.slots} came; do both run the same version?"
        )
    for number in range(_blocks(slots)):
        if number >= work.journal.count("theirs"):
            rows = work.channel.recv(work.active, Corrections).rows  # 1
            if len(rows) != _block_rows(slots, number) * ROW_BYTES:
                raise ProtocolError(
                    f"{work.active}: block {number} of corrections was expected to have "
                    f"{_block_rows(slots, number) * ROW_BYTES} bytes, {len(rows)} came; do both run the same version?"
                )
            work.journal.append("theirs", rows)
        work.did(_block_rows(slots, number))
    return partial(_values, work, question.seed, _blocks(slots))


def _values(work: AlignmentWork, seed: bytes, blocks: int) -> Words:
    chosen = work.journal.chunk("chosen", 0)
    holder = Holder(chosen[:ROW_BYTES], _keys(chosen[ROW_BYTES:]))
    for number in range(blocks):
        holder.correct(number, work.journal.chunk("theirs", number))
    values = holder.values(seed, work.keys, work.executor)
    work.did(work.rows)
    return values


def _blocks(slots: int) -> int:
    return -(-slots // BLOCK)


def _block_rows(slots: int, number: int) -> int:
    return min(BLOCK, slots - number * BLOCK)


def _keys(raw: bytes) -> list[bytes]:
    return [raw[start : start + KEY_BYTES] for start in range(0, len(raw), KEY_BYTES)]


def _pairs(raw: bytes) -> list[tuple[bytes, bytes]]:
    keys = _keys(raw)
    return list(zip(keys[::2], keys[1::2], strict=True))
