"""Lift of secret shares from k bits to L bits, as messages between the active party and its partner.

A is the active party, B its partner. Each has a random-looking integer ("share") for each of m secret numbers; the two
shares of a number add up to it modulo 2^k. The *lift* gives them shares that add up to the same numbers modulo 2^L, for
L > k. All numbers are below 2^(k-1). The arithmetic, and the reason why it reveals nothing, are in carry_lift.py.

0. B, A     for each number an oblivious transfer: A has two random pads, B has a random bit c and the pad of c
1. B -> A   e = c ^ (the top bit of B's share)                       one bit for each number
2. A -> B   Y_0, Y_1                                                 two words of L - k bits for each number

Comments refer to these steps by number. All received values are uniform. A session has its own subchannel and keys
(shares_session.py). *Packed* integers take only the bytes that their bits need.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Words
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import table_transfers
from securevfl.protocols.shares.carry_lift import CarryLift, SplitMask
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.codec import Message


class CarryBits(Message, frozen=True):
    """The bits e of step 1, eight in a byte."""

    bits: bytes


class CarryWords(Message, frozen=True):
    """The words Y of step 2: packed integers (2, m) for m numbers."""

    words: bytes


def declares_lift() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message of `lift_shares`. Roles: active, partner."""
    return [
        *table_transfers.declares(),
        MessageDeclaration(CarryBits, "partner", "active", Reveal("uniform")),
        MessageDeclaration(CarryWords, "active", "partner", Reveal("uniform")),
    ]


def lift_shares(products: Products, transfers: Transfers, partner: str, shares: Words, lift: CarryLift) -> Words:
    """Turn this party's shares modulo 2^k into shares modulo 2^L, together with the other party.

    Args:
        products: this party's session with the other party, whose subchannel carries the messages.
        transfers: oblivious transfers that select one of two pads. No other protocol uses their choices.
        partner: the name of party B.
        shares: this party's shares (m,) modulo 2^k of numbers below 2^(k-1). Those of A are uniform.
        lift: k and L, and the arithmetic of both parties (carry_lift.py).

    Returns:
        This party's shares (m,) modulo 2^L.
    """
    context, ring, m = products.context, lift.high_ring, len(shares)
    (stored,) = transfers.generate([m])  # step 0
    if context.me == partner:
        c, pad = table_transfers.chosen(stored, ring)
        packed = np.packbits(lift.request(shares, c), bitorder="little").tobytes()
        products.send(context.active, CarryBits(packed))  # step 1
        words = unpack_words(context.active, products.recv(context.active, CarryWords).words, ring, (2, m))  # step 2
        return lift.finish(shares, c, pad, words)
    packed = products.recv(partner, CarryBits).bits  # step 1
    if len(packed) != -(-m // 8):
        raise ProtocolError(
            f"{partner} sent {len(packed)} bytes of carry bits instead of {-(-m // 8)}",
            code="SVFL-PROTOCOL-SIZE",
            party=partner,
        )
    e = np.unpackbits(np.frombuffer(packed, np.uint8), count=m, bitorder="little")
    mask = SplitMask(shares, ring.uniform(Prg.fresh("masks of carries"), m))
    pads = context.meter("transfer", partial(table_transfers.pads, stored, ring))
    products.send(partner, CarryWords(ring.pack(lift.answer(mask, e, pads))))  # step 2
    return lift.join(mask)
