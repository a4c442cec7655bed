"""What parties make of each other's first messages in one conversation of a session on shares: products and transfers.

Work ahead of the training and questions about its model are conversations of their own, each on its lane, with nonces
and keys of its own, so that they may go on side by side.
"""

from __future__ import annotations

from securevfl.crypto.share_scheme import ShareScheme
from securevfl.protocols.seat import Seat
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.table_transfers import ActiveTransfers, PartnerTransfers, Transfers

__all__ = ["Met"]


class Met:
    """One party's end. Nothing is sent before it is asked for, by all parties at the same point."""

    def __init__(self, seat: Seat, partner: str, scheme: ShareScheme, table_bits: int) -> None:
        self._products = Products(seat, partner, scheme)
        self._bits = table_bits
        self._ends: dict[str, Transfers] = {}

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
    def switches(self) -> Transfers | None:
        """The same of two entries, for the switches of a shuffle."""
        return self._end("switches", 1)

    def _end(self, purpose: str, bits: int) -> Transfers | None:
        products = self.products
        if products.asked and purpose not in self._ends:
            seat = products.seat
            kind = ActiveTransfers if seat.me == seat.active else PartnerTransfers
            coin = products.coin(seat.active, 0, purpose)
            self._ends[purpose] = kind(seat, products.served[0], coin, bits)
        return self._ends.get(purpose)
