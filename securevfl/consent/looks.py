"""A look at sums over all rows, which is no training: refused if it tells too much, agreed to, and entered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from securevfl.consent.consent_sheet import Sheet
from securevfl.data.party import Party
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, LedgerEntry
from securevfl.disclosure.summed_bits import LOOK, check_looks

Consent = Callable[[Sheet], None]


def book_look(
    session: bytes,
    party: Party,
    told: Sequence[Disclosure],
    remedy: str,
    ledger: DisclosureLedger | None,
    consent: Consent | None,
    sheet: Callable[[Sequence[LedgerEntry]], Sheet],
) -> None:
    """Enter what a look tells about this party's columns, once `consent` has been given the sheet made of what was told
    before.

    LeakageError if it would be too much, with `remedy`; nobody is asked to agree to what is refused.
    """
    sitting = f"{LOOK} {session.hex()}", session.hex()
    check = partial(check_looks, party.name, told, remedy)
    if ledger is not None:
        ledger.admits(party.register, sitting, told, check)
    if consent is not None:
        consent(sheet([] if ledger is None else ledger.before(party.register, but=sitting)))
    if ledger is not None:
        ledger.book(party.register, sitting, told, check)
