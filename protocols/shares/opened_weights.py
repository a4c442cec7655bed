"""Weights of a training on shares, opened to whoever they belong to: at its end, and for those alone that a job names.

1. h -> k   r_kh, for each holder h of shares of k's weights
   k        theta_k = s_k + sum_h r_kh

A party that has its weights has a predictor of the labels, whatever was hidden before (X_k theta_k).
"""

from __future__ import annotations

from collections.abc import Collection

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.seat import Seat
from securevfl.protocols.shares.new_sums import words
from securevfl.protocols.shares.visits import SharedState
from securevfl.protocols.shares.work_ahead import Terms
from securevfl.runtime.door import Entry, Telling

__all__ = ["declares", "opened"]


class OpenedWeights(Telling, frozen=True):
    """A holder's share of the receiver's weights, (d x c) words."""

    words: bytes


def declares() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    told = Reveal("output", "its own weights, which rank the labels about as well as its columns can")
    pairs = (("active", "partner"), ("active", "passive"), ("partner", "active"), ("partner", "passive"))
    return [Declared(OpenedWeights, *pair, told) for pair in pairs]


def opened(seat: Seat, terms: Terms, state: SharedState, named: Collection[str]) -> Floats | None:
    """Open the weights: send each named party the shares that this one holds of its weights.

    Returns this party's own weights (d x c) if it is named, else None.
    """
    ring = ShareRing(terms.numbers.bits)
    for name in sorted(set(named) & set(state.others)):
        share = ring.reduce(terms.rule_of(name).theta(state.others[name], state.visits))
        told = seat.channel.tell(Entry(name, "labels", share.size, about=(seat.active,), group="weights"))
        seat.channel.send(name, OpenedWeights(ring.pack(share)), seat.lane, told=told)  # 1
    if seat.me not in named:
        return None
    total = ring.reduce(terms.rule_of(seat.me).theta(state.own, state.visits))
    for holder in (seat.active, terms.partner):
        if holder != seat.me:
            data = seat.channel.recv(holder, OpenedWeights, seat.lane).words  # 1
            total = ring.reduce(total + words(holder, data, ring, total.shape))
    return terms.numbers.weights(total)
