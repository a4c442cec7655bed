"""Joint statistics, which are sums over all rows and no training: checked, agreed to, and entered in the ledger."""

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
"""Asks this party's people whether they agree to a sheet; raises an error if they do not."""


def record_joint_statistics(
    session: bytes,
    party: Party,
    disclosures: Sequence[Disclosure],
    remedy: str,
    ledger: DisclosureLedger | None,
    consent: Consent | None,
    sheet: Callable[[Sequence[LedgerEntry]], ConsentSheet],
) -> None:
    """Enter what joint statistics disclose about this party's columns, once this party has agreed.

    Nobody is asked to agree to something that is refused.

    Args:
        session: the session.
        party: this party.
        disclosures: what the statistics disclose.
        remedy: what would disclose less.
        ledger: this party's ledger, or None.
        consent: asks this party's people, or None.
        sheet: creates the consent sheet from the earlier entries that count.

    Raises:
        LeakageError: if the statistics would disclose too much.
    """
    session_key = f"{JOINT_STATISTICS} {session.hex()}", session.hex()
    check = partial(check_statistics, party.name, disclosures, remedy)
    if ledger is not None:
        ledger.check_admission(party.register, session_key, disclosures, check)
    if consent is not None:
        consent(sheet([] if ledger is None else ledger.counted_for(party.register, but=session_key)))
    if ledger is not None:
        ledger.record(party.register, session_key, disclosures, check)
