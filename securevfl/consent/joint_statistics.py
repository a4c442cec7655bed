"""A look at sums over all rows, which is no training: refused if it tells too much, agreed to, and entered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.data.party import Party
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.summed_bits import JOINT_STATISTICS, check_statistics

Consent = Callable[[ConsentSheet], None]


def record_joint_statistics(
    session: bytes,
    party: Party,
    told: Sequence[Disclosure],
    remedy: str,
    ledger: DisclosureLedger | None,
    consent: Consent | None,
    sheet: Callable[[Sequence[LedgerEntry]], ConsentSheet],
) -> None:
    """Enter what a look tells about this party's columns, once `consent` has been given the sheet made of what was told
    before.

    LeakageError if it would be too much, with `remedy`; nobody is asked to agree to what is refused.
    """
    sitting = f"{JOINT_STATISTICS} {session.hex()}", session.hex()
    check = partial(check_statistics, party.name, told, remedy)
    if ledger is not None:
        ledger.check_admission(party.register, sitting, told, check)
    if consent is not None:
        consent(sheet([] if ledger is None else ledger.counted_for(party.register, but=sitting)))
    if ledger is not None:
        ledger.record(party.register, sitting, told, check)
