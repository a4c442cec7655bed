"""What whoever asks for scores of new rows is told of them, in any family: f of rows that were not trained on.

The party that asks chooses what it brings. It may bring its columns as they are, or hold them constant: then scores
are the others' part of f up to a constant, as of a linear model, row by row.

Exact where a job tells scores as they are. On shares they are levels: rounded at random to a grid, as they are to
whoever keeps the bits of its share below a step too (`securevfl.protocols.shares.opened_scores`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.job import Job
from securevfl.protocols.shares.share_levels import Levels

ROWS = 3000  # that are asked about at most


@dataclass(frozen=True)
class Asked:
    """Scores (m x c) of these rows as `learner` gets them, with its columns as they are and held constant.

    part (m x c): the others' part of f, up to a constant, as it is. own (m x d): its columns, empty if it has none.
    others: columns (m x d) of each other party, with their names.
    """

    learner: str
    rows: Rows
    scores: Floats
    constant: Floats
    part: Floats
    own: Floats
    others: dict[str, tuple[Floats, tuple[str, ...]]]


def asked(worlds: Worlds) -> Asked:
    """Rows that were held out, or if there are none, as good as new ones, scored by the finished model."""
    run, schedule = worlds.real_run[0], worlds.schedule
    rows = (schedule.test if len(schedule.test) else schedule.flow)[:ROWS]
    tables = {party.name: party.X[rows] for party in worlds.parties if party.columns}
    learner = run.active.asker
    scores = run.decision(tables)
    own = tables.get(learner, np.empty((len(rows), 0)))
    held = {learner: np.repeat(own.mean(axis=0, keepdims=True), len(rows), axis=0)} if learner in tables else {}
    constant = run.decision(tables | held) if held else scores
    others = {
        party.name: (tables[party.name], tuple(party.columns))
        for party in worlds.parties
        if party.columns and party.name != learner
    }
    told, told_constant = (as_told(worlds.job, f, seed) for seed, f in enumerate((scores, constant)))
    return Asked(learner, rows, told, told_constant, constant, own, others)


def as_told(job: Job, f: Floats, seed: int) -> Floats:
    """Scores f (m x c) as the job tells them."""
    options = job.protocol.shares
    if options is None or options.scores == "exact":
        return f
    return rounded(f, options.score_levels(job.model.loss.spacing), seed)


def rounded(f: Floats, levels: Levels, seed: int) -> Floats:
    """Round sums f (any shape) at random to levels; those out of reach wrap."""
    at = np.floor(f / levels.size + np.random.default_rng([seed, 6]).random(f.shape))
    return levels.sums(at.astype(np.int64).view(np.uint64), rounded_down=0)


def untold(job: Job) -> str:
    """Say why nobody is told scores in this job; empty where somebody is."""
    options = job.protocol.shares
    return "no scores of new rows are told in this job" if options is not None and options.scores == "none" else ""
