"""Audit of a run's disclosures to each party: transcript checks, simulated views and attacks.

A transcript is the list of all messages of a run; a view is everything that one party received in it. `run_audit`
audits a job on real tables. Checks of the library itself are in tests/selfcheck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securevfl.audit.findings import Audit
    from securevfl.audit.report import run_audit

__all__ = ["Audit", "run_audit"]


def __getattr__(name: str) -> Any:
    """Load the module `report` on first access; importing it at once would be a circular import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from securevfl.audit import report

    return getattr(report, name)
