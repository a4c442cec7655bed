"""Whether a row was trained on, from the model's loss on it (Yeom et al. 2018, section 3.2).

The attacker may ask the joint model for predictions and knows the labels of the rows it asks about. Rows of the
training set have the smaller loss, the more so the more the model overfits. Every training that ends in the same model
leaks the same here; the score needs held-out rows (`test_fraction`).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import (
    CLASSES,
    Attack,
    By,
    LabelAttack,
    Score,
    always,
    auc_noise,
    known_rows,
    label_auc,
)
from securevfl.audit.findings import NO_MESSAGE
from securevfl.audit.recording.views import View, Worlds, fields
from securevfl.base.arrays import Floats
from securevfl.families.base import Known
from securevfl.families.transfer.taylor import whole
from securevfl.families.transfer.transfer import SecondMoments
from securevfl.families.transfer.transfer_model import Transfer
from securevfl.job import Job
from securevfl.models.block import BlockModel


class Membership(Attack):
    name = "membership"
    paper = "Yeom et al. 2018, privacy risk in machine learning: analyzing the connection to overfitting"
    measures = "AUC of trained on or held out"
    by = By.ANYONE
    flips = True
    needs = ((lambda job: job.test_fraction > 0, "no rows are held out that were not trained on"),)
    remedy = always("stronger l2, fewer epochs")

    def score(self, worlds: Worlds) -> Score:
        member = np.zeros(len(worlds.active), np.intp)
        member[worlds.schedule.train] = 1
        loss, aucs = worlds.job.model.loss, []
        for run in (worlds.real_run[0], worlds.ideal_run[0]):
            f = run.decision({party.name: party.X for party in worlds.parties if party.columns})
            losses = loss.value(f, loss.targets(worlds.active.labels, run.active.label_classes))
            aucs.append(label_auc(-losses, member))
        return Score(aucs[0], aucs[1], 0.5, noise=auc_noise(member))


# Labels by completing one's own half of the model (Fu et al. 2022, USENIX Security, section 4.2).
#
# The trained bottom model of a passive party has learned to tell the classes apart. The attacker knows the labels of a
# few rows, sets a head on top of its own outputs and columns, and predicts all others. No protocol hides this: what a
# party's own columns say about the label, it learns by taking part.


class ModelCompletion(LabelAttack):
    name = "model_completion"
    paper = "Fu et al. 2022, label inference attacks against vertical federated learning"
    needs = (CLASSES,)

    remedy = always(NO_MESSAGE)

    def guess(self, view: View, worlds: Worlds) -> Floats:
        return complete(columns_and_outputs(view), view, worlds)


def columns_and_outputs(view: View) -> Floats:
    """Return the party's columns and, where its weights are by column, its outputs on all rows."""
    return np.column_stack([view.X, view.X @ view.theta]) if len(view.theta) == view.X.shape[1] else view.X


def complete(features: Floats, view: View, worlds: Worlds) -> Floats:
    """Scores (m x c) of a logistic head on features (m x k) that is taught a few labels; NaN on those rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known, train = known_rows(worlds), worlds.schedule.train
    scaled = StandardScaler().fit(features[train]).transform(features)
    head = LogisticRegression(C=0.1, max_iter=200).fit(scaled[known], worlds.labels[known])
    f = head.decision_function(scaled)
    scores = np.full((len(features), view.outputs), np.nan)
    hidden = np.setdiff1d(train, known)
    scores[hidden] = f[hidden, None] if f.ndim == 1 else f[hidden]
    return scores


# Labels ranked by one's own part of the finished model (Fu et al. 2022, passive label inference, without the labels).
#
# A passive party ends with its weights theta_k, in every mode, as it needs them to predict. X_k theta_k is what its
# columns say about the label, fitted with the help of all labels; so are the outputs of a network of its own. No
# message is needed beyond those that train, and no known label: the sign is the model's. The ideal attacker holds the
# same weights.


class OwnPart(LabelAttack):
    name = "own_part"
    paper = "Fu et al. 2022, label inference attacks against vertical federated learning"
    needs = (
        CLASSES,
        (
            lambda job: job.model.by_column or (isinstance(job.model, BlockModel) and not job.model.shows_parts),
            "no party ends with a part of the score of its own",
        ),
    )

    def hidden(self, job: Job) -> bool:
        """Weights that are shared leave a party a random direction of its columns, which ranks labels well or badly, by
        chance: no single run can be held against another."""
        return job.protocol.method is None and super().hidden(job)

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        if job.protocol.method is not None:
            return "none: its share of its weights is random; the mean over many runs is a half"
        return "none: the party needs these weights to predict; keep columns that go with the label from it"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        if not worlds.job.model.by_column:
            return last_outputs(view)
        own: Floats = view.X @ view.theta
        return own if np.any(own) else np.full_like(own, np.nan)


def last_outputs(view: View) -> Floats:
    """Return the outputs (m x c) of the party's own network when each row was last asked; NaN for rows never asked."""
    own = np.full((len(view.X), view.outputs), np.nan)
    for part in view.totals:
        own[view.rows[part.index]] = part.values
    return own


# Labels ranked by scores that a party makes itself: from its own network and the vector that moments tell.
#
# Where transfer learning is `linearised`, the party with labels shows Phi^T Phi of every exchange, which is Phi but for
# its sign (`securevfl.families.transfer.transfer`). Phi u_j is the score of row j, and u_j is the attacker's own: it
# ranks its rows by what the finished model says of them, without a request for a score. The ideal attacker was shown
# none.


class OwnScores(LabelAttack):
    name = "own_scores"
    paper = "Fu et al. 2022, label inference; the first singular vector of what is shown"
    needs = (
        CLASSES,
        (
            lambda job: isinstance(job.model, Transfer) and job.model.moments(job.optimizer.steps) > 0,
            "no moments are shown in this job",
        ),
    )

    def hidden(self, job: Job) -> bool:
        """Moments are shown in the clear, and declared."""
        return False

    remedy = always("linearised = false, where each local step opens a gradient in place of the moments")

    def guess(self, view: View, worlds: Worlds) -> Floats:
        model = worlds.job.model
        shown = [receipt.message for receipt in view.receipts if isinstance(receipt.message, SecondMoments)]
        if not isinstance(model, Transfer) or not shown or shown[-1].upper.size != model.units * (model.units + 1) // 2:
            return np.full((len(view.X), 1), np.nan)
        phi = np.linalg.eigh(whole(np.asarray(shown[-1].upper, np.float64), model.units))[1][:, -1]
        scores: Floats = model.build(view.X.shape[1], view.theta).forward(view.X) @ phi
        return scores[:, None]


# Labels from everything that came over the line, by a classifier that is taught a few of them.
#
# The attacker has no idea what the bytes mean. It cuts each byte string of a visit into as many pieces as the batch has
# rows, describes each piece by a few numbers, adds its own columns and what its opened gradients say of each row, and
# fits a head on the rows it knows. Bytes that follow the rows (a cleartext, one ciphertext a row under a fixed mask or
# exponent) raise its score; ciphertexts do not. Against a view whose bytes are random the number of features is equal.


class AllBytes(LabelAttack):
    name = "transcript"
    paper = "a distinguisher on the whole view (Goldreich 2004, definition 7.2.1, made a classifier)"
    drawn = True
    needs = (CLASSES,)

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        if job.protocol.residual is None:
            return NO_MESSAGE
        return super().remedy(job, known, attacker)

    def guess(self, view: View, worlds: Worlds) -> Floats:
        residuals = np.nan_to_num(view.mean_by_row(view.estimates()))
        return complete(np.column_stack([columns_and_outputs(view), residuals, pieces(view)]), view, worlds)


def pieces(view: View) -> Floats:
    """Numbers for each row and each place of a message (m x k): mean, first and last byte, and as integers."""
    by_place: dict[tuple[str, int], list[tuple[NDArray[np.intp], Floats]]] = defaultdict(list)
    for rows, receipt in view.received():
        for place, value in enumerate(fields(receipt.message)):
            if isinstance(value, bytes) and len(value) >= len(rows):
                by_place[type(receipt.message).__name__, place].append((rows, _describe(value, len(rows))))
    columns = [np.nan_to_num(view.mean_by_row(estimates)) for estimates in by_place.values()]
    return np.column_stack([np.empty((len(view.X), 0)), *columns])


def _describe(data: bytes, n: int) -> Floats:
    width = len(data) // n
    table = np.frombuffer(data[-width * n :], np.uint8).reshape(n, width).astype(np.float64)
    places = 256.0 ** -np.arange(min(width, 6))
    integers = [table[:, : len(places)] @ places, table[:, : -len(places) - 1 : -1] @ places]
    return np.column_stack([table.mean(axis=1), table[:, 0], table[:, -1], *integers])
