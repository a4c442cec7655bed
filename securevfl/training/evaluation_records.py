"""The results of a training's evaluations on disk, so that a resumed run does not repeat them.

An evaluation discloses something about the measured rows. If a party stops after an evaluation and before the next
checkpoint, all parties repeat the rounds in between, but not the evaluations. The *leading party* decides when a
training ends; usually it is the party with labels.
1. The leading party stores each result at once. All other parties store the *decision* (continue or stop) they receive.
2. At the start of a session, every party states in its hello message which evaluations it has on disk.
3. The leading party uses its stored results, and a decision that all other parties have is not sent again.

The repeated rounds use new masks, so their weights differ from the evaluated ones by rounding. The evaluation of the
final model is therefore reused only if all parties resume from a checkpoint of the final weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from securevfl.base.checked_files import DamagedFileError, read_checked, write_checked
from securevfl.data.baseline import Baseline
from securevfl.errors import DataError, StorageError
from securevfl.families.score_results import Measurement
from securevfl.protocols.handshake import RunHello, StopDecision

FINAL_EVALUATION = 1 << 62
"""Number that stands for the evaluation of the final model. Other evaluations have the number of their round."""


class _Record(msgspec.Struct):
    """One evaluation as it is stored: its metrics, and the leading party's decision if there was one."""

    metrics: dict[str, float]
    calibration: list[list[float]]
    standard_errors: dict[str, float]
    start_loss: float = msgspec.field(name="zero_model_loss")  # the name that older versions write
    by_class: dict[str, dict[str, float]]
    notes: list[str]
    baseline: dict[str, Any] | None = None
    decision: tuple[bool, bool, bool] | None = None
    loss_rounding: float = 0.0


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(dict[int, _Record])


class EvaluationFile:
    """The evaluations of one training at one party.

    Args:
        path: the file; None if the party stores no checkpoints, so that nothing is stored.

    Raises:
        DataError: if the file is damaged.
        StorageError: if it cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._records = {} if path is None or not path.exists() else _read(path)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the stored evaluations: the rounds after which they took place, or FINAL_EVALUATION."""
        return tuple(sorted(self._records))

    def measurement(self, number: int) -> Measurement:
        """Return the stored result of an evaluation; an empty one if this party received none."""
        if (record := self._records.get(number)) is None:
            return Measurement()
        baseline = None if record.baseline is None else Baseline(**record.baseline)
        return Measurement(
            metrics=record.metrics,
            calibration=record.calibration,
            standard_errors=record.standard_errors,
            start_loss=record.start_loss,
            loss_rounding=record.loss_rounding,
            score_baseline=baseline,
            by_class=record.by_class,
            notes=record.notes,
        )

    def decision(self, number: int) -> StopDecision:
        """Return the stored decision after an evaluation: to stop, or to continue (also if none is stored)."""
        stored = self._records[number].decision or (False, False, False)
        return StopDecision(*stored)

    def store(self, number: int, measurement: Measurement, decision: StopDecision | None = None) -> None:
        """Store an evaluation; it is on disk when this method returns.

        Args:
            number: the number of the evaluation, which is the round after which it took place, or FINAL_EVALUATION.
            measurement: its result, empty at a party that receives none.
            decision: the decision after it, if there was one.

        Raises:
            StorageError: if the file cannot be written.
        """
        if self._path is None:
            return
        baseline = measurement.score_baseline
        self._records[number] = _Record(
            {name: float(value) for name, value in measurement.metrics.items()},
            [[float(value) for value in point] for point in measurement.calibration],
            {name: float(value) for name, value in measurement.standard_errors.items()},
            float(measurement.start_loss),
            {name: {key: float(value) for key, value in row.items()} for name, row in measurement.by_class.items()},
            list(measurement.notes),
            None if baseline is None else baseline.model_dump(mode="json"),
            None if decision is None else (decision.stop, decision.is_best, decision.roll_back),
            float(measurement.loss_rounding),
        )
        write_checked(self._path, _ENCODER.encode(self._records))

    def delete(self) -> None:
        """Remove the file, because the training ends or starts again."""
        self._records = {}
        if self._path is not None:
            self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class KnownEvaluations:
    """The evaluations that a session does not repeat.

    Attributes:
        file: this party's stored evaluations.
        measured: numbers of the evaluations whose result the leading party has.
        decided: numbers of the evaluations whose decision all other parties have.
    """

    file: EvaluationFile
    measured: frozenset[int] = frozenset()
    decided: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, file: EvaluationFile, hellos: Mapping[str, RunHello], lead: str, *, has_final_weights: bool
    ) -> KnownEvaluations:
        """Return the evaluations that a resumed session does not repeat.

        Args:
            file: this party's stored evaluations.
            hellos: the hello messages of all parties.
            lead: name of the leading party.
            has_final_weights: whether all parties resume from a checkpoint of the final weights.

        Returns:
            The evaluations.
        """
        numbers = {name: frozenset(hello.evaluated) for name, hello in hellos.items()}
        measured = numbers.pop(lead)
        if not has_final_weights:
            measured -= {FINAL_EVALUATION}
        return cls(file, measured, measured.intersection(*numbers.values()))


def _read(path: Path) -> dict[int, _Record]:
    try:
        return _DECODER.decode(read_checked(path))
    except OSError as cause:
        raise StorageError(path, cause) from None
    except (DamagedFileError, msgspec.MsgspecError):
        raise DataError(
            f"{path}: the file of evaluations is damaged",
            "restore it, or remove it; the evaluations are then computed again and count again",
            code="SVFL-CHECKPOINT",
            path=str(path),
        ) from None
