"""Opening of weights: at the end of a training on secret shares, the parties that the job names receive their weights.

The weights theta_k (d, c) of party k are shared: theta_k = s_k + sum_h r_kh modulo 2^L. k has s_k, and every share
holder h other than k has r_kh; the share holders are the party with labels and its partner. Weights are rounded to b
bits. t is the integer modulo 2^L that represents one unit of the last of these bits.

1. all        record in their ledgers how much the weights of each named party k disclose about their data
2. h -> k     floor(r_kh / t) mod 2^b, from each share holder h
   k          theta_k = s_k + sum_h (received number + 1/2) * t
   k, h       store theta_k and 0 as their new shares, so that the model that is scored has the rounded weights

Comments refer to these steps by number. b and t are public (`WeightQuantizer`). A rounded weight has 7 bits before the
binary point and a number of fractional bits that grows with the number of training rows, so that rounding changes a
weight by less than `MAX_ROUNDING_ERROR` standard errors. The part of a holder's share that is cut off is uniform to k,
so the weight is rounded at random, without bias.

A party that knows its weights can rank rows by their probable labels, by computing X_k @ theta_k. A party that deviates
may multiply residuals by any numbers, such as powers of two, and the party with labels may use any table of the loss.
Even then, a weight discloses at most b bits about labels and about the columns of all other parties. So each of these
parties records b bits for each weight. A permit states what a message discloses; without it, the channel does not send
the message. *Packed* integers take only the bytes that their bits need.
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

MAX_ROUNDING_ERROR = 0.05
"""Largest standard deviation of a weight's rounding error, in standard errors of the weight."""

# standard deviation, in units of the last bit, of the error of a sum of two rounded summands
_ROUNDING_DEVIATION = 6**-0.5
_INTEGER_BITS = 7  # bits of a weight before the binary point, including its sign


class OpenedWeights(DisclosingMessage, frozen=True):
    """A share holder's share of the receiver's weights: packed integers (d, c) of b bits (step 2)."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    output = Reveal("output", "the receiver's weights, which rank the labels about as well as its columns can")
    pairs = (("active", "partner"), ("active", "passive"), ("partner", "active"), ("partner", "passive"))
    return [MessageDeclaration(OpenedWeights, *pair, output) for pair in pairs]


@dataclass(frozen=True)
class WeightQuantizer:
    """The rounding of weights to multiples of 2^-fraction in [-64, 64), which have `bits` bits."""

    fraction: int

    @classmethod
    def of(cls, rows: int, curvature: float) -> WeightQuantizer:
        """Return the quantizer for weights that were trained on this number of rows.

        For a column of unit variance, the standard error of its weight is at least 1 / sqrt(rows * curvature).

        Args:
            rows: the number of training rows.
            curvature: the largest second derivative of a row's loss with respect to the model's output.

        Returns:
            The quantizer.
        """
        steps = _ROUNDING_DEVIATION / MAX_ROUNDING_ERROR * math.sqrt(rows * curvature)
        return cls(max(1, math.ceil(math.log2(steps))))

    @property
    def bits(self) -> int:
        """The number of bits b of a rounded weight."""
        return self.fraction + _INTEGER_BITS

    def shift(self, encoding: FixedPointEncoding) -> int:
        """Return the number of lowest bits of a share that rounding cuts off, which is log2(t)."""
        return max(1, encoding.f_theta - self.fraction)


def record_weights(
    context: PartyContext, params: SharesParams, quantizer: WeightQuantizer, named: Collection[str]
) -> dict[str, DisclosurePermit]:
    """Record in this party's ledger how much the weights of each named party disclose about its data.

    All parties must have done this before any of them sends a share, because weights depend on the data of all parties.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        params: the parameters of the training on which all parties agree (shares_params.py).
        quantizer: how weights are rounded.
        named: the parties that the job names, which receive their weights.

    Returns:
        The permits to send shares, by the name of the receiver.
    """
    permits = {}
    for name in sorted(set(named) - {context.me}):
        count, about = params.columns[name] * params.outputs, (context.me,)
        record = DisclosureRecord(name, "columns", count, quantizer.bits, about=about, group="weights")
        permits[name] = context.channel.permit(record)
        if context.me == context.active:
            record = DisclosureRecord(name, "labels", count, quantizer.bits, about=about, group="weights")
            permits[name] = context.channel.permit(record)
    return permits


def open_weights(
    context: PartyContext,
    params: SharesParams,
    state: SharedState,
    quantizer: WeightQuantizer,
    permits: dict[str, DisclosurePermit],
    named: Collection[str],
) -> SharedState:
    """Send each named party the share of its weights, and receive this party's weights if it is named.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        params: the parameters of the training on which all parties agree (shares_params.py).
        state: this party's shares of the weights.
        quantizer: how weights are rounded.
        permits: the permits from `record_weights`.
        named: the parties that the job names, which receive their weights.

    Returns:
        The new state. A named party's share contains its weights, and the shares of its weights elsewhere are zero.
    """
    ring, shift = ShareRing(quantizer.bits), np.uint64(quantizer.shift(params.encoding))
    peer_shares = dict(state.peer_shares)
    for name in sorted(set(named) & set(state.peer_shares)):
        rule, r = params.rule_of(name), state.peer_shares[name]
        share = ring.reduce(ShareRing(params.encoding.bits).reduce(rule.result(r, state.iterations)) >> shift)
        context.channel.send(name, OpenedWeights(ring.pack(share)), context.subchannel, permit=permits[name])  # step 2
        peer_shares[name] = _fresh_state(r, np.zeros_like(share))
    if context.me not in named:
        return replace(state, peer_shares=peer_shares)
    half = np.uint64(1) << (shift - np.uint64(1))
    total = params.rule_of(context.me).result(state.own_share, state.iterations)
    for holder in (context.active, params.partner):
        if holder != context.me:
            data = context.channel.recv(holder, OpenedWeights, context.subchannel).words  # step 2
            total = total + (unpack_words(holder, data, ring, total.shape) << shift) + half
    bits = min(params.encoding.bits, quantizer.bits + int(shift))
    total = ShareRing(bits).signed(total).astype(np.int64).view(np.uint64)
    own_share = _fresh_state(state.own_share, ShareRing(params.encoding.bits).reduce(total))
    return replace(state, own_share=own_share, peer_shares=peer_shares)


def _fresh_state(state: Words, theta: Words) -> Words:
    """Return the state (k, d, c) of an update rule that starts with these weights and has no changes."""
    fresh = np.zeros_like(state)
    fresh[0] = theta
    return fresh
