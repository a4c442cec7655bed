"""What parties make of each other's first messages in one conversation of a session on shares: products and transfers.

Work ahead of the training and questions about its model are conversations of their own, each on its lane, with nonces
and keys of its own, so that they may go on side by side.
"""

from __future__ import annotations

from securevfl.crypto.share_scheme import ShareScheme
from securevfl.protocols.base import Seat
from securevfl.protocols.shares_products import Products
from securevfl.protocols.shares_transfers import ActiveTransfers, PartnerTransfers, Transfers

__all__ = ["Met"]


class Met:
    """One party's end. Nothing is sent before it is asked for, by all parties at the same point."""

    def __init__(self, seat: Seat, partner: str, scheme: ShareScheme, table_bits: int) -> None:
        self._products = Products(seat, partner, scheme)
        self._bits = table_bits
        self._transfers: Transfers | None = None

    @property
    def products(self) -> Products:
        """The products, with everyone greeted."""
        self._products.meet()
        return self._products

    @property
    def transfers(self) -> Transfers | None:
        """The transfers, with the base transfers made; None at a party that is no holder."""
        products = self.products
        if products.asked and self._transfers is None:
            seat = products.seat
            kind = ActiveTransfers if seat.me == seat.active else PartnerTransfers
            coin = products.coin(seat.active, 0, "transfers")
            self._transfers = kind(seat, products.served[0], coin, self._bits)
        return self._transfers
