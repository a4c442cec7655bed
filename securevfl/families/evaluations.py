"""The joint evaluations of a run: after which rounds they take place, on which rows, and what they disclose.

In a joint evaluation all parties compute the outputs f of the current model on the held-out rows, or on the training
rows if no rows are held out. The active party has the labels and leads; passive parties have none. After an evaluation
the leading party may send the decision to continue, to stop, or to roll back: to return to an earlier model and to
continue with shorter steps. A round is one update on a batch of rows. A session is a part of a run that is not
interrupted; an interrupted run resumes in another session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from securevfl.data.schedule import count_subset_epochs
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.outputs import Output
from securevfl.options import JobOptions
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.runtime.disclosure_gate import Group


@dataclass(frozen=True)
class EvaluationSchedule:
    """After which rounds all parties evaluate the model together. Only this class computes these rounds.

    Attributes:
        rounds: number of rounds of a complete run.
        interval: number of rounds between evaluations; 0 if there is only one evaluation, at the end.
        decision_interval: number of rounds between decisions of the leading party to stop or to roll back; 0 if it
            sends none.
        may_restore: whether the parties may restore an earlier, better model at the end and measure it again.
        start: number of rounds that an earlier session has finished; their evaluations are counted there.
        fixed: the rounds after which a training that may stop early is evaluated and decided on, ascending up to
            `rounds`; empty if evaluations have an interval.
        may_roll_back: whether an evaluation can make the training roll back, the last one included.
    """

    rounds: int
    interval: int
    decision_interval: int
    may_restore: bool
    start: int = 0
    fixed: tuple[int, ...] = ()
    may_roll_back: bool = False

    @classmethod
    def of(cls, job: JobOptions, rounds: int, subset_rounds: int = 0) -> EvaluationSchedule:
        """Return the schedule of evaluations of a job.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            rounds: number of rounds of a complete run.
            subset_rounds: number of its first rounds, which use subsets of the rows.

        Returns:
            The schedule.
        """
        fixed = job.optimizer.evaluation_rounds(rounds, subset_rounds)
        return cls(
            rounds,
            job.evaluation_interval,
            job.decision_interval,
            job.stopping is not None,
            fixed=fixed,
            may_roll_back=job.may_roll_back,
        )

    @classmethod
    def of_run(cls, job: JobOptions, shape: RunShape) -> EvaluationSchedule:
        """Return the evaluation schedule of a run with these public sizes, counted from its first session."""
        epochs = shape.start // shape.batches + shape.epochs
        rounds, subset_epochs = epochs * shape.batches, shape.subset_epochs
        if subset_epochs is None:
            subset_epochs = count_subset_epochs(shape.rows, epochs, job.batch_size)
        return replace(cls.of(job, rounds, subset_epochs), start=min(shape.start, rounds))

    def is_due(self, done: int) -> bool:
        """Whether the parties evaluate the model after `done` rounds, before the next one."""
        return done in self.fixed if self.fixed else self.interval > 0 and done % self.interval == 0

    def measured_rounds(self, start: int = 0) -> list[int]:
        """Return the numbers of rounds after which the model is measured, each number once.

        Args:
            start: number of rounds that were finished before a resume.

        Returns:
            The numbers of finished rounds, ascending.
        """
        if self.fixed:
            return [number for number in self.fixed if number > start]
        if not self.interval:
            return [self.rounds]
        between = range((start // self.interval + 1) * self.interval, self.rounds + 1, self.interval)
        return [*between] if self.rounds % self.interval == 0 else [*between, self.rounds]

    def count_measured_rounds(self, start: int = 0) -> int:
        """Return the number of `measured_rounds`, without listing them."""
        if self.fixed:
            return len(self.measured_rounds(start))
        if not self.interval:
            return 1
        return -(-self.rounds // self.interval) - start // self.interval

    def remaining(self, start: int) -> int:
        """Return the largest number of evaluations of a run that resumes after `start` rounds.

        A resumed session may end with a model that an earlier session measured, and then measures it again. A complete
        run knows the loss of every model to which it can return.
        """
        ends_with_evaluation = self.is_due(self.rounds)
        restores = ends_with_evaluation and start > 0 and (self.may_restore or self.may_roll_back)
        return self.count_measured_rounds(start) + restores

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the run. The one at the end is counted even if it repeats that of the last round."""
        if self.fixed:
            return 1 + len(self.measured_rounds(self.start))
        return 1 + (self.rounds // self.interval - self.start // self.interval if self.interval else 0)

    @property
    def decisions(self) -> int:
        """Number of decisions to continue, to stop or to roll back that the leading party sends."""
        if self.fixed:
            return len(self.measured_rounds(self.start))
        interval = self.decision_interval
        return self.rounds // interval - self.start // interval if interval else 0


def evaluated_group(shape: RunShape) -> Group:
    """Return the name of the group of rows on which metrics are measured: "held out" or "training"."""
    return "held out" if shape.held_out else "training"


def evaluated_rows(shape: RunShape) -> int:
    """Return the number of rows on which metrics are measured."""
    return shape.held_out or shape.rows


def stop_decision_outputs(job: JobOptions, shape: RunShape) -> list[Output]:
    """List the decisions after evaluations, which disclose bits about labels to the passive parties.

    A malicious active party can make a decision depend on a single label.
    """
    times, rows = EvaluationSchedule.of_run(job, shape).decisions, evaluated_rows(shape)
    capacity = max(1, int(rows * shape.bits_of_a_label))
    return [
        Output(
            "decisions to stop or to roll back",
            "labels",
            name,
            (shape.active,),
            "evaluation",
            times,
            times * STOP_DECISION_BITS,
            capacity,
            rows=rows,
            numbers=1,
            bits=STOP_DECISION_BITS,
            group="verdicts",
        )
        for name in shape.passives
        if times
    ]


def score_output(job: JobOptions, shape: RunShape) -> Output:
    """Return the disclosure of the model outputs f that the leading party learns in joint evaluations.

    It computes f from sums that other disclosures of the run already list, so no further numbers are sent for f.
    """
    times, rows = EvaluationSchedule.of_run(job, shape).evaluations, evaluated_rows(shape)
    count = times * rows * shape.outputs
    return Output(
        "scores of evaluated rows", "scores", shape.active, shape.passives, "evaluation", times, count, rows=rows
    )
