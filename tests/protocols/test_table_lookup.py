"""A look-up of shared sums in blocks: shares of the right entries, and one call while the partner waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securevfl.base.roles import PARTNER, Roles
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.fixed_point import FINE_BITS
from securevfl.protocols.shares.opened_loss import EVALUATION_LIFT
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES
from securevfl.protocols.shares.table_lookup import SUMS_PER_LOOKUP, MaskedEntries, TableOffsets, look_up_shares
from securevfl.protocols.shares.table_transfers import BaseTransfers
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.network import Network
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from tests.hard_tables import sizes_around

RING = EVALUATION_LIFT.short_ring


@pytest.mark.parametrize("sums", [1, *sizes_around(SUMS_PER_LOOKUP)])
def test_shares_of_entries_add_up_and_the_partner_is_called_once(sums: int) -> None:
    """The partner is called after its messages about all blocks, and before it has read an entry."""
    rng = np.random.default_rng(sums)
    indices = rng.integers(0, 2**FINE_BITS, (2, sums), dtype=np.uint8)
    entries = rng.integers(0, 2**RING.bits, (sums, 2**FINE_BITS), dtype=np.uint64)
    steps: list[str] = []

    def rotated_tables(block: slice, starts: Any) -> Any:
        """Return the tables of a block, each rotated to begin at its start."""
        order = (np.arange(2**FINE_BITS) + np.asarray(starts)[:, None]) % 2**FINE_BITS
        return np.take_along_axis(entries[block], order, axis=1).astype(np.uint16)

    def watch(event: Event) -> None:
        if isinstance(event.message, TableOffsets) and event.direction == "send":
            steps.append("offsets")
        if isinstance(event.message, MaskedEntries) and event.direction == "recv":
            steps.append("entries")

    def role(place: int) -> Callable[[Any], Any]:
        def play(channel: Any) -> Any:
            context = PartyContext(
                channel, Roles.of((("a", "active"), ("b", PARTNER))), Meter(channel.clock, channel.counters)
            )
            products = Products(context, "b", SHARE_SCHEMES["own"](RING.bits))
            peer = "ba"[place]
            transfers = BaseTransfers(context, peer).transfers(context, "fine", bytes(32), FINE_BITS, 2)
            return look_up_shares(
                products, transfers, "b", indices[place], FINE_BITS, None if place else rotated_tables, RING,
                meanwhile=lambda: steps.append(f"call of {context.me}"),
            )  # fmt: skip

        return play

    shares = run_threads(
        {name: role(k) for k, name in enumerate("ab")}, lambda: VirtualClock(Network()), timeout=60, observe=watch
    )
    looked_up = entries[np.arange(sums), indices.sum(axis=0, dtype=np.uint8)]
    np.testing.assert_array_equal(RING.reduce(shares["a"] + shares["b"]), looked_up)
    blocks = -(-sums // SUMS_PER_LOOKUP)
    assert steps.count("call of b") == 1
    assert "call of a" not in steps
    assert steps.count("offsets") == steps.count("entries") == blocks
    assert steps[: blocks + 1] == ["offsets"] * blocks + ["call of b"]
