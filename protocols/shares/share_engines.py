"""Which engine multiplies shared vectors in a session: the first of those that every party can run.

Every party names the engines that it can run when it greets the others (share_products.py), and all find the same
first one. The kernel comes before SEAL, and is not named where the BLAS at hand does not compute as it needs. Both hide
as much, so a party gains nothing by naming fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from securevfl.crypto.kernel import check
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.bfv_product import LatticeShares
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.errors import ProtocolError
from securevfl.runtime import eventlog

__all__ = ["ENGINES", "agreed", "available"]

ENGINES = (KernelShares, LatticeShares)  # the first that all can run is used


def available(bits: int) -> tuple[ShareScheme, ...]:
    """List the engines that this machine can run for shares modulo 2^bits, the preferred one first."""
    return tuple(engine(bits) for engine in ENGINES if engine is not KernelShares or not check.fault())


def agreed(own: Sequence[ShareScheme], told: Mapping[str, Sequence[str]], me: str) -> ShareScheme:
    """Choose the engine of a session, from this party's own and the names that every other party told.

    The event log says who cannot run the engine that was preferred. ProtocolError if they have none in common.
    """
    mine = {scheme.name: scheme for scheme in own}
    order = [engine.name for engine in ENGINES]
    common = [name for name in mine if all(name in names for names in told.values())]
    if not common:
        raise ProtocolError(
            f"engines for shares: one of {', '.join(mine)} was expected of everyone, "
            f"{', '.join(sorted(told))} named others; run the same release everywhere"
        )
    chosen = min(common, key=lambda name: order.index(name) if name in order else len(order))
    without = [me] * (order[0] not in mine) + sorted(name for name, names in told.items() if order[0] not in names)
    if chosen != order[0]:
        why = check.fault() if me in without else f"{', '.join(without)} cannot run the engine {order[0]}"
        facts: dict[str, str | int | float] = {"engine": chosen, "without": ", ".join(without), "reason": why}
        eventlog.warn(me, "products on a slower engine", facts)
    return mine[chosen]
