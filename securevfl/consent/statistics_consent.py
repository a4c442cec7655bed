"""Consent to joint statistics: sums over all rows that a peer receives without a training, such as correlations.

The disclosures are counted in the party's ledger, together with those of earlier statistics and trainings.
"""

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
"""Shows a consent sheet to this party's people, and raises an error if they do not agree to it."""


def record_joint_statistics(
    session: bytes,
    party: Party,
    disclosures: Sequence[Disclosure],
    remedy: str,
    ledger: DisclosureLedger | None,
    consent: Consent | None,
    sheet: Callable[[Sequence[LedgerEntry]], ConsentSheet],
) -> None:
    """Check the disclosures of joint statistics, ask this party for consent, and enter them in its ledger.

    If the statistics would disclose too much, they are refused before anybody is asked.

    Args:
        session: name of the session between the two parties.
        party: this party.
        disclosures: the disclosures of the statistics to the peer.
        remedy: a change of the request that would disclose less.
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
