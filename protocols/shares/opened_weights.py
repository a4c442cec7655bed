"""Weights of a training on shares, opened to whoever they belong to: at its end, and for those alone that a job names.

1. all        enter what the weights of each named party k tell of their own data, before anyone sends a bit of them
2. h -> k     floor(r_kh / s) mod 2^b, for each holder h of shares of k's weights
   k          theta_k = s_k + sum_h (what came + 1/2) s, which is a number of the ring
   k, h       keep theta_k and 0 as their new shares: it is the model that is scored and served

b and s are public (`WeightQuantizer`): weights are told to f bits, f by the number of rows, so that what rounding
changes
stays below `MAX_ROUNDING_ERROR` standard errors of a weight, and 7 bits before the point. What is below s at a holder
is uniform to
k, so this rounds at random, without bias.

A party that has its weights has a predictor of the labels, whatever was hidden before (X_k theta_k). One that deviates
multiplies residuals by what it likes, powers of two say, and the party with labels may put what it likes into its table
of the loss. What comes holds b bits a weight all the same, about labels and about the columns of all other parties: b
bits a weight are what each of these enters.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.share_products import unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosurePermit, DisclosureRecord

MAX_ROUNDING_ERROR = 0.05  # of a standard error, that rounding changes a weight by at most (standard deviation)
_OFF = 6**-0.5  # deviation of two numbers that are rounded at random, in steps
_WHOLE = 7  # bits of a weight before the point, with its sign


class OpenedWeights(DisclosingMessage, frozen=True):
    """A holder's share of the receiver's weights, (d x c) words of b bits."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    told = Reveal("output", "its own weights, which rank the labels about as well as its columns can")
    pairs = (("active", "partner"), ("active", "passive"), ("partner", "active"), ("partner", "passive"))
    return [MessageDeclaration(OpenedWeights, *pair, told) for pair in pairs]


@dataclass(frozen=True)
class WeightQuantizer:
    """The steps in which weights are told: 2^-fraction apart, over 64 on either side, so of `bits` bits each."""

    fraction: int

    @classmethod
    def of(cls, rows: int, curvature: float) -> WeightQuantizer:
        """Return the levels for weights that were trained on so many rows.

        curvature: of a row's loss by its sum, at most. The standard error of the weight of a column of unit variance is
        1 / sqrt(rows curvature) at least.
        """
        return cls(max(1, math.ceil(math.log2(_OFF / MAX_ROUNDING_ERROR * math.sqrt(rows * curvature)))))

    @property
    def bits(self) -> int:
        """b: the bits of a weight."""
        return self.fraction + _WHOLE

    def shift(self, numbers: FixedPointEncoding) -> int:
        """How many bits of a share are below s."""
        return max(1, numbers.f_theta - self.fraction)


def record_weights(
    context: PartyContext, terms: SharesParams, levels: WeightQuantizer, named: Collection[str]
) -> dict[str, DisclosurePermit]:
    """Enter what the weights of each named party tell of this party's own data; hand out leave to send them by name.

    All parties must have entered before any sends a weight: theirs are in the weights that others open.
    """
    leave = {}
    for name in sorted(set(named) - {context.me}):
        count = terms.columns[name] * terms.outputs
        about = (context.me,)
        leave[name] = context.channel.permit(
            DisclosureRecord(name, "columns", count, levels.bits, about=about, group="weights")
        )
        if context.me == context.active:
            leave[name] = context.channel.permit(
                DisclosureRecord(name, "labels", count, levels.bits, about=about, group="weights")
            )
    return leave


def open_weights(
    context: PartyContext,
    terms: SharesParams,
    state: SharedState,
    levels: WeightQuantizer,
    permit: dict[str, DisclosurePermit],
    named: Collection[str],
) -> SharedState:
    """Open the weights: send each named party what this one holds of its weights. leave: what `record_weights` has
    handed out.

    Returns the state after it: a named party has its weights in its own share, and others have nothing of them.
    """
    coarse, shift = ShareRing(levels.bits), np.uint64(levels.shift(terms.encoding))
    kept = dict(state.others)
    for name in sorted(set(named) & set(state.others)):
        rule, of = terms.rule_of(name), state.others[name]
        share = coarse.reduce(ShareRing(terms.encoding.bits).reduce(rule.theta(of, state.visits)) >> shift)
        context.channel.send(name, OpenedWeights(coarse.pack(share)), context.subchannel, permit=permit[name])  # 2
        kept[name] = _anew(of, np.zeros_like(share))
    if context.me not in named:
        return replace(state, others=kept)
    half = np.uint64(1) << (shift - np.uint64(1))
    total = terms.rule_of(context.me).theta(state.own, state.visits)
    for holder in (context.active, terms.partner):
        if holder != context.me:
            data = context.channel.recv(holder, OpenedWeights, context.subchannel).words  # 2
            total = total + (unpack_words(holder, data, coarse, total.shape) << shift) + half
    bits = min(terms.encoding.bits, levels.bits + int(shift))
    total = ShareRing(bits).signed(total).astype(np.int64).view(np.uint64)
    return replace(state, own=_anew(state.own, ShareRing(terms.encoding.bits).reduce(total)), others=kept)


def _anew(of: Words, theta: Words) -> Words:
    """Return a state (k x d x c) of the shape of another one whose weights are these, whatever visits came before."""
    made = np.zeros_like(of)
    made[0] = theta
    return made
