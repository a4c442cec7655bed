"""Joint prediction between organisations: each brings its part of the model and its columns of new rows.

1. all <-> all           Asked    which training the part is of, rows, keyed digest of the row order, role in it
2. all                   the method's own messages (`securevfl.families`); the party that asks alone learns f

What a party learns is what it learns in the evaluation of a training, for these rows. Passive parties enter the scores
that they tell in their disclosure ledgers before step 2; the same rows with the same columns count once, where a method
tells the same of them again (`Family.repeatable_scores`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.data.store import OnProgress
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import PartiesError
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.prediction import OnUnscored, Prediction, ScoreCounts
from securevfl.organisations.prediction_session import PredictionSession
from securevfl.organisations.reason_codes import ReasonCodePolicy
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import NO_TABLE, NewRows, no_rows, rows_of_array
from securevfl.transport.peers import Peers


def predict_with(
    part: ModelPart,
    X: ArrayLike,
    peers: Peers | str | Path = "peers.toml",
    *,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
    code_policy: ReasonCodePolicy | None = None,
) -> Prediction | None:
    """Predicts new rows together with the parties in `peers`; the outcome at the party that
    asks (`ModelPart.asker`), None at the others.

    X: this party's columns (m x d), or one row (d,), in the order that all parties share; with column names they are
    found by name. ids: compared with those of the others, if both have them. giving: reason codes of this party's
    columns that the party that asks is told of each row. The rest as in `join`.

    Raises TableError that names columns which are missing, ConfigError if the parts are not of one training, IdError or
    TableError if the rows are not the same, TransportError as `join`.
    """
    blocks: list[Prediction] = []
    venue, rows = PeerSettings.of(peers, certs, listen, timeout, patience), rows_of_array(part, X, ids)
    predict_rows(
        part, rows, venue, on_block=lambda _, block: blocks.append(block), ledger=ledger, code_policy=code_policy
    )
    if not blocks:
        return None
    probas = [block.proba for block in blocks if block.proba is not None]
    return Prediction(
        np.concatenate([block.decision for block in blocks]),
        np.concatenate([block.label for block in blocks]),
        np.concatenate(probas) if probas else None,
        blocks[0].classes,
        {name: [each for block in blocks for each in block.reasons[name]] for name in blocks[0].reasons},
    )


def predict_rows(
    part: ModelPart,
    rows: NewRows,
    venue: PeerSettings,
    *,
    on_block: Callable[[list[Any] | None, Prediction], None],
    on_progress: OnProgress | None = None,
    on_unscored: OnUnscored | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    code_policy: ReasonCodePolicy | None = None,
) -> ScoreCounts:
    """`predict_with` in blocks of rows, so that memory does not grow with the table; returns what came of the rows.

    on_block(ids, outcome) is called at the party that asks with each block in order, and on_unscored(id, state) there
    with each row that is left out; on_progress(rows done, of) at all.
    """
    check_parties_of(part, venue.peers)
    if code_policy is not None:
        code_policy.check(part)
    own_ledger = DisclosureLedger.open(part.name, ledger)

    def talk(channel: Channel) -> ScoreCounts:
        return answer_rows(
            part,
            rows,
            channel,
            own_ledger,
            on_block=on_block,
            on_progress=on_progress,
            on_unscored=on_unscored,
            code_policy=code_policy,
        )

    terms = {"job": part.job, "parties": part.parties, "task": "predict"}
    answered = run_session(part.name, venue, terms, talk, ledger=own_ledger)
    eventlog.emit(part.name, "predicted", {"rows": rows.count})
    return answered


def check_parties_of(part: ModelPart, peers: Peers) -> None:
    """PartiesError unless the peers are those of the training."""
    if tuple(part.parties) != peers.parties:
        raise PartiesError(
            f"the model of {', '.join(part.parties)} was expected to meet these parties, the file of peers names "
            f"{', '.join(peers.parties)}; bring the peers of the training"
        )


def answer_rows(
    part: ModelPart,
    rows: NewRows,
    channel: Channel,
    ledger: DisclosureLedger,
    *,
    on_block: Callable[[list[Any] | None, Prediction], None],
    on_progress: OnProgress | None = None,
    on_unscored: OnUnscored | None = None,
    code_policy: ReasonCodePolicy | None = None,
) -> ScoreCounts:
    """Return what came of this party's side of one prediction over a channel where all parties are there; the rest as
    `predict_rows`."""
    answering, answered = PredictionSession(part, channel, ledger, code_policy, rows), ScoreCounts(0, 0)
    count = answering.count
    for ids, X in (no_rows(count) if rows.count == NO_TABLE else rows).blocks():
        states, outcome = answering.block(ids, X)
        if outcome is not None:
            on_block(*outcome)
            for at, state in enumerate(states):
                if state != "scored" and ids is not None and on_unscored is not None:
                    on_unscored(ids[at], state)
        answered += ScoreCounts.of(states)
        if on_progress is not None:
            on_progress(answered.asked, count)
    return answered
