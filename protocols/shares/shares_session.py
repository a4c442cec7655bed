"""What parties make of each other's first messages in one conversation of a session on shares: products and transfers.

Work ahead of the training and questions about its model are conversations of their own, each on its subchannel, with
nonces
and keys of its own, so that they may go on side by side.
"""

from __future__ import annotations

from securevfl.crypto.share_scheme import ShareScheme
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.table_transfers import BaseTransfers, Transfers


class SharesSession:
    """One party's end. Nothing is sent before it is asked for, by all parties at the same point."""

    def __init__(
        self,
        context: PartyContext,
        partner: str,
        scheme: ShareScheme,
        numbers: FixedPointEncoding,
        base: BaseTransfers | None = None,
    ) -> None:
        """Keep what it is made of. base: at a holder, those of this session where another conversation has them too."""
        self._products = Products(context, partner, scheme)
        self._bits, self._top_bits = numbers.table_bits, numbers.top_bits
        self._ends: dict[str, Transfers] = {}
        self.base = base or BaseTransfers(context, partner if context.me == context.active else context.active)

    @property
    def products(self) -> Products:
        """The products of this session, once every party has been greeted."""
        self._products.meet()
        return self._products

    @property
    def transfers(self) -> Transfers | None:
        """Transfers for the tables, with the base transfers made; None at a party that is no holder."""
        return self._end("transfers", self._bits)

    @property
    def top_transfers(self) -> Transfers | None:
        """The same for tables by the highest bits of sums."""
        return self.transfers if self._bits >= self._top_bits else self._end("tops", self._top_bits)

    @property
    def switch_transfers(self) -> Transfers | None:
        """The same of two entries, for the switches of a shuffle."""
        return self._end("switches", 1)

    def _end(self, purpose: str, bits: int) -> Transfers | None:
        products = self.products
        if products.asked and purpose not in self._ends:
            coin = products.coin(products.context.active, 0, purpose)
            self._ends[purpose] = self.base.transfers(products.context, purpose, coin, bits)
        return self._ends.get(purpose)
