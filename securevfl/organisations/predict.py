"""Joint prediction between organisations: each party brings its part of the model and its columns of new rows.

`securevfl.organisations.prediction_session` describes the messages.
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
from securevfl.organisations.preconditions import SessionNeeds
from securevfl.organisations.prediction import OnUnscored, Prediction, ScoreCounts
from securevfl.organisations.prediction_session import PredictionSession
from securevfl.organisations.score_reasons import ReasonProvider
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
    code_policy: ReasonProvider | None = None,
) -> Prediction | None:
    """Predict new rows together with the other parties.

    Args:
        part: this party's part of the model.
        X: this party's columns (m, d), or one row (d,), in the row order that all parties share. A table with column
            names may have its columns in any order.
        peers: the file of peers, or its content.
        ids: ids of the rows, by default the index of a frame, if it has a name or differs from 0 to m - 1. They are
            compared with those of the others if both parties have them.
        ledger: this party's disclosure ledger, as in `join`.
        certs: the folder with this party's key and certificate and ca.pem; by default that of the file of peers.
        listen: host:port to bind instead of the port of this party's address.
        timeout: seconds to wait for all parties at the start, and for each message.
        patience: seconds without a connection after which a party is lost.
        code_policy: which reason codes of this party's columns the requesting party receives; None for no codes.

    Returns:
        The prediction at the requesting party (`ModelPart.asker`), None at the other parties.

    Raises:
        TableError: columns are missing, or the numbers of rows differ.
        IdError: the row orders differ.
        ConfigError: the parts come from different trainings.
        TransportError: a party cannot be reached, was refused or has stopped.
    """
    blocks: list[Prediction] = []
    settings, rows = PeerSettings.of(peers, certs, listen, timeout, patience), rows_of_array(part, X, ids)
    predict_rows(
        part, rows, settings, on_block=lambda _, block: blocks.append(block), ledger=ledger, code_policy=code_policy
    )
    if not blocks:
        return None
    probas = [block.proba for block in blocks if block.proba is not None]
    return Prediction(
        np.concatenate([block.decision for block in blocks]),
        np.concatenate([block.label for block in blocks]),
        np.concatenate(probas) if probas else None,
        blocks[0].classes,
        {name: [codes for block in blocks for codes in block.reasons[name]] for name in blocks[0].reasons},
    )


def predict_rows(
    part: ModelPart,
    rows: NewRows,
    settings: PeerSettings,
    *,
    on_block: Callable[[list[Any] | None, Prediction], None],
    on_progress: OnProgress | None = None,
    on_unscored: OnUnscored | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    code_policy: ReasonProvider | None = None,
) -> ScoreCounts:
    """Predict rows as `predict_with` does, in blocks, so that memory does not grow with the table.

    Args:
        part: this party's part of the model.
        rows: this party's rows.
        settings: addresses, certificates and time limits.
        on_block: is called at the requesting party with the ids and the prediction of each block, in order.
        on_progress: is called with the number of rows done and the total.
        on_unscored: is called at the requesting party with the id and the state of each row without a score.
        ledger: this party's disclosure ledger, as in `join`.
        code_policy: which reason codes of this party's columns the requesting party receives; None for no codes.

    Returns:
        The numbers of rows by state.
    """
    check_parties_of(part, settings.peers)
    if code_policy is not None:
        code_policy.check(part)
    party_ledger = DisclosureLedger.open(part.name, ledger)

    def talk(channel: Channel) -> ScoreCounts:
        return answer_rows(
            part,
            rows,
            channel,
            party_ledger,
            on_block=on_block,
            on_progress=on_progress,
            on_unscored=on_unscored,
            code_policy=code_policy,
        )

    handshake = {"job": part.job, "parties": part.parties, "task": "predict"}
    needs = SessionNeeds(rows=max(0, rows.count))
    counts = run_session(part.name, settings, handshake, talk, ledger=party_ledger, needs=needs)
    eventlog.emit(part.name, "rows predicted", {"rows": rows.count})
    return counts


def check_parties_of(part: ModelPart, peers: Peers) -> None:
    """Raise PartiesError unless the peers are the parties of the training."""
    if tuple(part.parties) != peers.parties:
        raise PartiesError(
            f"the model belongs to {', '.join(part.parties)}, and the file of peers names {', '.join(peers.parties)}",
            "use the file of peers of the training",
            code="SVFL-PEERS-FILE",
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
    code_policy: ReasonProvider | None = None,
) -> ScoreCounts:
    """Run this party's role in one prediction over a channel to the other parties.

    Args:
        part: this party's part of the model.
        rows: this party's new rows.
        channel: channel to the other parties.
        ledger: this party's ledger.
        on_block: called at the requesting party with the ids and the prediction of each block, in order.
        on_progress: called with the number of rows done and the total.
        on_unscored: called at the requesting party with the id and the state of each row without a score.
        code_policy: which reason codes of this party's columns the requesting party receives; None for no codes.

    Returns:
        The numbers of rows by state.
    """
    session, counts = PredictionSession(part, channel, ledger, code_policy, rows), ScoreCounts(0, 0)
    total = session.count
    rows_to_score = no_rows(total) if rows.count == NO_TABLE else rows
    session.check_request(row_id for ids, _ in rows_to_score.blocks() for row_id in ids or ())
    for ids, X in rows_to_score.blocks():
        states, prediction = session.block(ids, X)
        if prediction is not None:
            on_block(*prediction)
            for index, state in enumerate(states):
                if state != "scored" and ids is not None and on_unscored is not None:
                    on_unscored(ids[index], state)
        counts += ScoreCounts.of(states)
        if on_progress is not None:
            on_progress(counts.requested, total)
    return counts
