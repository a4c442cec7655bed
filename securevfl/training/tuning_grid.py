"""The alternatives of a search: one job for each combination of values of one or more numeric options.

An option is named as in a job file, with its table (`model.l2`, `prepare.bins`) or without it (`l2`). The *plain data*
of a job are its nested dicts, as in the job file. All alternatives have the same rows and batches, so that their losses
can be compared. Each is measured once, at its end, by one sum of losses that is disclosed. The chosen alternative is
trained again as an ordinary job (`final_job`), whose evaluation also discloses pairs of a score and a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import product
from typing import Any, get_args

from securevfl.base.config import to_plain
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.linear import LinearModel
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.defaults import PRECISE_ITERATIONS

MAX_ALTERNATIVES = 64
"""Largest number of alternatives of a search; each one discloses a sum of losses of the same rows."""
Grid = Mapping[str, tuple[float | str, ...]]
"""The values of each option that a search combines, by the name of the option: numbers, or columns for `drop`."""
DROP = "drop"
"""The option of a party's own search whose values are columns that the model does not get; "none" drops no column."""
KEEP_ALL = "none"

_SCHEDULE = ("optimizer", "batch_size", "epochs", "patience")
"""The options that are derived again for a job whose steps or end depend on evaluations during the training."""
_SILENT: dict[str, Any] = {"scores": "none", "score_bits": None, "scores_to": None, "open_weights": ()}
"""Options of an alternative: it never scores a row and opens no weights."""
_FIXED = {
    "seed": "it does not change a linear model",
    "split": "it changes the held-out rows",
    "test_fraction": "it changes the held-out rows",
    "evaluate_every": "each alternative is measured once",
    "early_stop": "each alternative is measured once",
    "batch_size": "it changes the batches, which all alternatives share",
}
"""Options that a search cannot change, with the reason."""


def read_grid(items: Iterable[str]) -> dict[str, tuple[float | str, ...]]:
    """Read the values of options from texts such as `l2=0.01,0.1,1`.

    Args:
        items: one text for each option.

    Returns:
        The grid.

    Raises:
        ConfigError: a text is not of this form, or names an option twice.
    """
    grid: dict[str, tuple[float | str, ...]] = {}
    for item in items:
        name, _, values = item.partition("=")
        numbers: tuple[float | str, ...] = ()
        with suppress(ValueError):
            numbers = tuple(value if name == DROP else _number(value) for value in values.split(","))
        if not name or not all(value != "" for value in numbers) or not numbers or name in grid:
            raise ConfigError(
                f"--grid {item} does not list the values of one more option as numbers",
                "write it once for each option, as in --grid l2=0.01,0.1,1",
                code="SVFL-COMMAND-USAGE",
            )
        grid[name] = numbers
    return grid


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def alternative_jobs(job: Job, grid: Grid, *, alone: bool = False) -> dict[str, Job]:
    """Return the jobs of a search by their values, such as `l2 = 0.1, epochs = 40`.

    Block descent with a penalty converges slowly. If the grid contains l2 and not epochs, all jobs therefore get at
    least PRECISE_ITERATIONS epochs.

    Args:
        job: the options that all alternatives have in common.
        grid: the values of each option.
        alone: whether one party trains these jobs on its own columns. Nothing is disclosed then, so a job of any mode
            is accepted.

    Returns:
        The jobs, each of which opens one sum of losses if it is trained with other parties.

    Raises:
        ConfigError: the job cannot be tuned, an option is none that a search can change, or a value is invalid.
    """
    job = job if alone else tuned_job(job)
    if not isinstance(job.model, LinearModel):
        raise _unusable(f"its {job.model.name} model is not linear", "use a linear model or trees")
    keys = {name: ("prepare", DROP) if alone and name == DROP else _key_of(job, name) for name in grid}
    tunes_l2 = ("model", "l2") in keys.values() and ("epochs",) not in keys.values()
    if tunes_l2 and isinstance(job.optimizer, BlockDescent):
        job = Job.from_dict(job.to_dict() | {"epochs": max(job.epochs, PRECISE_ITERATIONS)})
    if len(set(keys.values())) < len(keys):
        raise _unusable("two names of the grid are the same option", "name it once")
    count = 1
    for values in grid.values():
        count *= len(set(values))
    if not 2 <= count <= MAX_ALTERNATIVES or any(len(set(values)) < len(values) for values in grid.values()):
        raise _unusable(
            f"the grid has {count} different alternatives, and 2 to {MAX_ALTERNATIVES} are possible, each value once",
            "list several values, as in l2=0.01,0.1,1",
        )
    jobs = {}
    for values in product(*grid.values()):
        texts = [value if isinstance(value, str) else f"{value:g}" for value in values]
        name = ", ".join(f"{option} = {text}" for option, text in zip(grid, texts, strict=True))
        jobs[name] = _with_values(job, dict(zip(keys.values(), values, strict=True)))
    return jobs


def tuned_job(job: Job) -> Job:
    """Return the job that a search starts from: its number of epochs is fixed, and it is measured once, at its end.

    Trees and jobs with bins take long steps by default, which need evaluations during the training. They get safe steps
    and the number of epochs that belongs to them. An optimizer that stops early runs all iterations.

    Args:
        job: the job.

    Returns:
        The job that the alternatives vary, with all metrics.

    Raises:
        ConfigError: the job cannot be tuned.
    """
    if job.protocol.shares is None:
        raise _unusable(
            "it does not train on secret shares. In other modes every training discloses sums or gradients of single "
            "batches, so each alternative would disclose as much as a training",
            "leave protocol out, or choose values on the label holder's columns alone (compare --grid --alone)",
        )
    if not job.test_fraction:
        raise _unusable("alternatives are compared on held-out rows, and it has none", "set test_fraction = 0.25")
    overshoots = job.optimizer.may_overshoot and job.evaluates_between_rounds
    job = job.model_copy(update={"optimizer": job.optimizer.without_early_stop()})
    ends_early = isinstance(job.model, LinearModel) and job.model.ends_early
    if job.stops_early and not ends_early:
        raise _unusable(
            "it stops early (patience or target), so its alternatives would open several sums of losses",
            "leave patience and target out, and list values of epochs instead",
        )
    keys = job.to_dict() | {"evaluate_every": 0}
    if job.stops_early or overshoots:
        keys = {key: value for key, value in keys.items() if key not in _SCHEDULE}
    return Job.from_dict(keys)


def final_job(job: Job, alternative: Job) -> Job:
    """Return the job that trains a chosen alternative again, with all metrics, scores and weights of the first job.

    Args:
        job: the job of the search.
        alternative: the chosen alternative.

    Returns:
        The job.
    """
    return Job.from_dict(alternative.to_dict() | {key: job.to_dict()[key] for key in ("protocol", "reason_codes")})


def tunable_options(job: Job) -> dict[str, tuple[str, ...]]:
    """Return the options that a search can change, by names such as `model.l2`, with their paths in the plain data."""
    options = {}
    for table, owner in (("model", job.model), ("optimizer", job.optimizer)):
        for field, info in type(owner).model_fields.items():
            is_fixed = field in _FIXED or (field == "l2" and not job.model.by_column)
            if _holds_numbers(info.annotation) and not is_fixed:
                options[f"{table}.{field}"] = (table, field)
    return options | {"epochs": ("epochs",), "prepare.bins": ("prepare", "bins")}


def _holds_numbers(annotation: Any) -> bool:
    return annotation in (int, float) or any(_holds_numbers(part) for part in get_args(annotation))


def _key_of(job: Job, name: str) -> tuple[str, ...]:
    """Return the path of an option in the job's plain data: the keys of the nested dicts."""
    options = tunable_options(job)
    matching = [key for option, key in options.items() if name in (option, option.rpartition(".")[2])]
    if matching:
        return matching[0]
    reason = _FIXED.get(name, "it is no numeric option of this job that a search can change")
    raise _unusable(f"{name} cannot be tuned: {reason}", f"tune one of {', '.join(options)}")


def _with_values(job: Job, values: Mapping[tuple[str, ...], float | str]) -> Job:
    """Return the job of the alternative with these values, measured once at its end by one sum of losses."""
    plain, shares = job.to_dict(), job.protocol.shares
    if shares is not None:
        silent = job.protocol.model_copy(update={"shares": shares.model_copy(update=_SILENT | {"metrics": "loss"})})
        plain |= {"protocol": to_plain(silent), "reason_codes": 0}
    for key, value in values.items():
        if key[-1] == DROP:
            plain["prepare"][DROP] = [*plain["prepare"][DROP], *([] if value == KEEP_ALL else [value])]
            continue
        table = plain
        for part in key[:-1]:
            table = table.setdefault(part, {})
        table[key[-1]] = value
    return Job.from_dict(plain)


def _unusable(problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"this job cannot be tuned: {problem}", remedy, code="SVFL-JOB-UNSUPPORTED")
