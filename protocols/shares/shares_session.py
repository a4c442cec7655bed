"""The products and oblivious transfers of one session between the parties of a training on shares.

The offline phase of the training and requests about its model are separate sessions. Each has its subchannel, nonces
and keys, so that they can run concurrently.
"""

from __future__ import annotations

from securevfl.crypto.share_scheme import ShareScheme
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.table_transfers import BaseTransfers, Transfers


class SharesSession:
    """One party's side. A message is sent only when a property is first used, by all parties at the same point.

    Args:
        context: this party's context.
        partner: the share holder next to the active party.
        scheme: the encryption scheme of the products.
        encoding: the fixed-point encoding.
        base: at a holder, the base transfers of another session that this one shares, or None.
    """

    def __init__(
        self,
        context: PartyContext,
        partner: str,
        scheme: ShareScheme,
        encoding: FixedPointEncoding,
        base: BaseTransfers | None = None,
    ) -> None:
        self._products = Products(context, partner, scheme)
        self._bits, self._top_bits = encoding.table_bits, encoding.top_bits
        self._transfers: dict[str, Transfers] = {}
        self.base = base or BaseTransfers(context, partner if context.me == context.active else context.active)

    @property
    def products(self) -> Products:
        """The products of this session, after greeting every party."""
        self._products.greet()
        return self._products

    @property
    def transfers(self) -> Transfers | None:
        """Transfers for tables of residuals and losses; None at a party that is no holder."""
        return self._transfers_for("transfers", self._bits)

    @property
    def top_transfers(self) -> Transfers | None:
        """Transfers for tables that are indexed by the highest bits of sums; None at a party that is no holder."""
        return self.transfers if self._bits >= self._top_bits else self._transfers_for("tops", self._top_bits)

    @property
    def switch_transfers(self) -> Transfers | None:
        """Transfers of one of two entries, for the switches of a shuffle; None at a party that is no holder."""
        return self._transfers_for("switches", 1)

    def _transfers_for(self, purpose: str, bits: int) -> Transfers | None:
        products = self.products
        if products.is_holder and purpose not in self._transfers:
            coin = products.coin(products.context.active, 0, purpose)
            self._transfers[purpose] = self.base.transfers(products.context, purpose, coin, bits)
        return self._transfers.get(purpose)
