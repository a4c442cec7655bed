"""A party that stays up and answers one scoring request after the other (`securevfl.organisations.scoring`).

A request that is refused, broken off or malformed ends for everyone with its reason, and the party waits for the next.
Between requests nothing of the last one is kept but counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, LeakageError, PartiesError, SecureVFLError
from securevfl.organisations.conversation import Venue, converse
from securevfl.organisations.predict import Answered, check_parties_of
from securevfl.organisations.reason_codes import GivenCodes
from securevfl.organisations.scoring import ServedTable, answer_requests, terms
from securevfl.protocols.alignment.standing import StandingTable
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import HeldRows

Outcome = Literal["answered", "refused", "failed"]

AGAIN = 1.0  # seconds before it listens again after a request that failed


@dataclass(frozen=True)
class Ended:
    """One request that is over. seconds: since all parties were there, 0 if that never came about."""

    outcome: Outcome
    seconds: float
    answered: Answered | None = None
    sent: int = 0
    reason: str = ""


class Server:
    """A party without labels that answers. ConfigError or PartiesError if what it brings does not fit, and ConfigError
    unless the ledger's owner has set limits to scores and ids.

    most: ids that one request may ask about. on_request is called after each request, also one that failed.
    executor: takes the curve work of comparing ids, processes of this party. giving: as in `predict_with`.
    """

    def __init__(
        self,
        part: ModelPart,
        rows: HeldRows,
        venue: Venue,
        *,
        most: int = 10_000,
        ledger: DisclosureLedger | str | Path | None = None,
        on_request: Callable[[Ended], None] = lambda ended: None,
        executor: Executor | None = None,
        giving: GivenCodes | None = None,
    ) -> None:
        if part.leads:
            raise PartiesError(
                f"a party that answers was expected to serve, {part.name} leads and asks; run securevfl score there"
            )
        self._venue = replace(venue, wait=math.inf)
        check_parties_of(part, self._venue.peers)
        if giving is not None:
            giving.check(part)
        self._part, self._giving = part, giving
        self._rows = rows
        self._most = most
        self._ledger = DisclosureLedger.of(part.name, ledger)
        _check_limits(self._ledger)
        self._on_request = on_request
        table = StandingTable(rows.ids, executor) if len(part.parties) == 2 else None
        self._served = ServedTable(rows, most, executor, giving, table)
        self._met = 0.0  # when all parties were there, of the request that is being answered
        self._sent = 0
        self._stopping: Callable[[], bool] = lambda: False

    @property
    def most(self) -> int:
        """How many ids one request may ask about."""
        return self._most

    @property
    def codes(self) -> int:
        """How many reason codes of a row it gives, 0 if none."""
        return 0 if self._giving is None else self._giving.most

    @property
    def answering(self) -> bool:
        """Whether a request is being answered, and not waited for."""
        return self._met > 0

    def run(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Answer until `stopping` says so after a request. While it waits, only an exception ends it; KeyboardInterrupt
        if a conversation goes on when `stopping` has said so."""
        self._stopping = stopping
        facts: dict[str, str | int | float] = {"rows": len(self._rows.ids), "most": self._most}
        if self._giving is not None:
            facts |= {"codes": self._giving.most, "bits_of_codes": round(self._giving.bits(self._part), 1)}
        eventlog.emit(self._part.name, "serving", facts)
        while not stopping():
            ended = self._next()
            self._met = 0.0
            if ended is not None:
                self._on_request(ended)
                if ended.outcome == "failed":
                    time.sleep(AGAIN)

    def _next(self) -> Ended | None:
        """Wait for a conversation and answer its requests; return how the one ended that was not answered, if any."""
        try:
            converse(self._part.name, self._venue, terms(self._part), self._answer, ledger=self._ledger)
        except LeakageError as error:
            return Ended("refused", self._since(), sent=self._sent, reason=str(error))
        except SecureVFLError as error:
            return Ended("failed", self._since(), sent=self._sent, reason=str(error))
        return None

    def _answer(self, channel: Channel) -> None:
        before = 0
        try:
            for event in answer_requests(self._part, self._served, channel, self._ledger):
                if isinstance(event, Answered):
                    sent = channel.books.bytes_sent()
                    self._on_request(Ended("answered", self._since(), event, sent - before))
                    self._met, before = 0.0, sent
                elif self._stopping():
                    raise KeyboardInterrupt
                else:
                    self._met = time.monotonic() if event.rows else 0.0
        finally:
            self._sent = channel.books.bytes_sent() - before

    def _since(self) -> float:
        return time.monotonic() - self._met if self._met else 0.0


def _check_limits(ledger: DisclosureLedger) -> None:
    """Who stays up for whoever asks must have said for how long: nobody looks on as it answers."""
    limits = ledger.read().limits
    lacking = [kind for kind in ("scores", "ids") if kind not in limits]
    if lacking:
        wanted = " ".join(f"--limit {kind}=10000" for kind in lacking)
        raise ConfigError(
            f"{ledger.party}: limits to {' and '.join(lacking)} were expected in {ledger.path} before it serves, there "
            f"are none; set them, as in: securevfl ledger --party {ledger.party} {wanted}"
        )
