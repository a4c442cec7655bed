"""One party's access to the two building blocks of a training on shares: shared products and oblivious transfers.

The party with labels and its partner are the share holders. A product of a holder's vector with another party's columns
ends as one additive share at each of the two: random-looking integers that add up to the product. An oblivious transfer
lets one holder read an entry of a table of the other, which does not learn the entry's index; *pads*, random numbers,
hide all other entries. The offline phase of a training, and requests for scores of its model, are separate sessions.
Each session has its subchannel, nonces and keys, so that sessions can run concurrently. A table lists one number for
each of 2^b values of the model's output: the training reads residuals (derivatives of the loss) from tables. *Fine
tables* have 256 entries and list losses, or shifts of scores. Entries may be sent with k bits only: the *lift* turns
the two holders' shares of an entry that was read into shares of L bits.
"""

from __future__ import annotations

from securevfl.crypto.share_ring import ShareRing
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.crypto.transfers.correlated_transfers import CorrelatedSender
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.fixed_point import FINE_BITS, FINE_ENTRY_BITS, FixedPointEncoding
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.small_products import SmallFactors, WordFactors
from securevfl.protocols.shares.table_transfers import BaseTransfers, Transfers


class SharesSession:
    """One party's side of a session: its encrypted products, and one set of oblivious transfers for each kind of table.

    The first use of a property sends messages, so all parties must use it first at the same point of the protocol.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        partner: the share holder that does not have the labels.
        scheme: the encryption scheme of the products.
        encoding: the fixed-point encoding of the training.
        base: at a holder, base transfers of another session between the same two holders, which this session uses as
            well; None to create new ones. Base transfers are the few slow transfers that all others are derived from.
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
        self._bits, self._top_bits, self._lifts = encoding.table_bits, encoding.top_bits, encoding.lift_bits > 0
        self._entry_octets = encoding.lift_bits // 8 or 8
        self._transfers: dict[str, Transfers] = {}
        self._peer = partner if context.me == context.active else context.active
        self.base = base or BaseTransfers(context, self._peer)
        self._reverse_base = BaseTransfers(context, self._peer, reverse=True)
        self._small_products: dict[str, WordFactors | SmallFactors] = {}

    @property
    def products(self) -> Products:
        """The products of this session; the first use exchanges nonces and keys with every party."""
        self._products.greet()
        return self._products

    @property
    def unopened_products(self) -> Products:
        """The products of this session, which may not have exchanged nonces and keys yet."""
        return self._products

    @property
    def training_transfers(self) -> Transfers | None:
        """Transfers for tables of residuals, with pads as long as an entry; None if this party is no share holder."""
        return self._transfers_for("training", self._bits, self._entry_octets)

    @property
    def transfers(self) -> Transfers | None:
        """Transfers for tables with as many entries as a residual table; None if this party is no share holder."""
        return self._transfers_for("transfers", self._bits)

    @property
    def carry_transfers(self) -> Transfers | None:
        """Transfers of one of two pads, for the lift of table entries; None if this party is no share holder.

        They are generated apart from those for tables: the random bit that selects a pad for the lift must not be one
        of the random bits that select a table entry.
        """
        return self._transfers_for("carries", 1) if self._lifts else None

    def delayed_transfers(self, context: PartyContext) -> list[Transfers]:
        """Return transfers for tables of residuals and for their lift, which are generated during the training.

        They are those of `training_transfers` and `carry_transfers` for another subchannel, that of the training.

        Args:
            context: the context of the training.

        Returns:
            The two kinds of transfers, or one if table entries are not lifted; nothing if not a share holder.
        """
        if not self.products.is_holder:
            return []
        purposes = [("training", self._bits, self._entry_octets), *[("carries", 1, 8)] * self._lifts]
        for purpose, bits, octets in purposes:
            if (key := f"delayed {purpose}") not in self._transfers:
                coin = self.products.coin(context.active, 0, key)
                self._transfers[key] = self.base.transfers(context, key, coin, bits, octets)
        return [self._transfers[f"delayed {purpose}"] for purpose, _, _ in purposes]

    @property
    def fine_transfers(self) -> Transfers | None:
        """Transfers for fine tables, with pads of 16 bits; None if this party is no share holder.

        Fine tables contain losses, or the shifts by which scores are clipped.
        """
        return self._transfers_for("fine", FINE_BITS, FINE_ENTRY_BITS // 8)

    @property
    def fine_carry_transfers(self) -> Transfers | None:
        """Transfers of one of two pads, for the lift of entries of fine tables; None if not a share holder."""
        return self._transfers_for("fine carries", 1)

    @property
    def top_transfers(self) -> Transfers | None:
        """Transfers for tables that are indexed by the highest bits of a sum; None if this party is no share holder."""
        return self.transfers if self._bits >= self._top_bits else self._transfers_for("tops", self._top_bits)

    @property
    def switch_transfers(self) -> Transfers | None:
        """Transfers of one of two entries, for the switches of a shuffle; None if this party is no share holder."""
        return self._transfers_for("switches", 1)

    def small_products(
        self, purpose: str, ring: ShareRing, count: int, *, reverse: bool = False
    ) -> WordFactors | SmallFactors:
        """Return products of one share holder's words with small integers of the other (small_products.py).

        Args:
            purpose: a name for the products; seeds are derived from it.
            ring: the integers modulo 2^L.
            count: the number of words that are multiplied by one integer.
            reverse: whether the partner has the words, in place of the active party.

        Returns:
            This share holder's side.
        """
        if purpose not in self._small_products:
            context = self.products.context
            coin = self.products.coin(context.active, 0, purpose)
            base = self._reverse_base if reverse else self.base
            transfers = base.correlated(context, purpose, coin, ring, count)
            if isinstance(transfers, CorrelatedSender):
                self._small_products[purpose] = WordFactors(context, self._peer, transfers, ring, count)
            else:
                self._small_products[purpose] = SmallFactors(context, self._peer, transfers, ring, count)
        return self._small_products[purpose]

    def _transfers_for(self, purpose: str, bits: int, pad_octets: int = 8) -> Transfers | None:
        products = self.products
        if products.is_holder and purpose not in self._transfers:
            coin = products.coin(products.context.active, 0, purpose)
            self._transfers[purpose] = self.base.transfers(products.context, purpose, coin, bits, pad_octets)
        return self._transfers.get(purpose)
