"""A job: what all parties agree on before anything runs. Read from Python or from a TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import field_validator, model_validator

from securevfl.base.config import flatten, to_plain
from securevfl.base.extensions import Extension
from securevfl.data.party import Party
from securevfl.display import html
from securevfl.errors import ConfigError, PartiesError
from securevfl.families import EXTENSIONS, FAMILIES, leak_kinds
from securevfl.families.family import Family
from securevfl.models import MODELS, metrics
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.optim import OPTIMIZERS
from securevfl.optim.defaults import why_not_on_shares
from securevfl.options import JobOptions

DATA_KEY = "data"  # the key of a job file that is for the computer it lies on


class Job(JobOptions):
    """One training: what `JobOptions` says, checked by its method."""

    @field_validator("accepts")
    @classmethod
    def _check_accepts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = leak_kinds()
        if strange := [name for name in value if name not in known]:
            raise ValueError(f"{', '.join(strange)}: no leak has this name; choose from {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _check_target(self) -> Job:
        known = metrics.metric_names(self.model.loss)
        for name, own in (("target", self.target), ("patience", self.patience)):
            if own is not None and own.metric not in known:
                raise ValueError(f"{name}.metric must be one of {', '.join(known)} for this model; choose one of these")
        return self

    @model_validator(mode="after")
    def _check_method(self) -> Job:
        family = self.family
        if not family.supports_model(type(self.model)):
            own = [name for name, kind in MODELS.items() if family.supports_model(kind)]
            if self.protocol.family is not None:
                raise ValueError(
                    f"protocol.{self.protocol.family} trains {', '.join(own)} models only: "
                    f'{why_not_on_shares(self.model) or "this is none"}; use protocol = "ckks"'
                )
            fits = [
                name for name, kind in OPTIMIZERS.items() if FAMILIES[kind.family]().supports_model(type(self.model))
            ]
            raise ValueError(
                f"optimizer {self.optimizer.name} trains {', '.join(own)} models only; "
                f"use optimizer {' or '.join(fits)} for a {self.model.name} model"
            )
        weighed = family.supports_row_weights and (self.model.by_column or self.model.family == family.name)
        if self.weights is not None and not weighed:
            raise ValueError(
                f"weights: rows count the same in {family.name} of a {self.model.name} model; "
                "leave weights out, or train a linear model"
            )
        if self.exposure is not None and not (
            isinstance(self.model.loss, LogLinkLoss) and family.supports_row_weights and self.model.by_column
        ):
            raise ValueError(
                f"exposure: a linear model of counts or amounts was expected, {self.model.loss.name} loss in "
                f"{family.name} is none; use poisson, gamma, tweedie or negative_binomial, or leave exposure out"
            )
        if self.positive is not None and not (self.model.loss.classifies and self.model.loss.single):
            raise ValueError(
                f"positive: a loss of two classes was expected, {self.model.loss.name} is none; leave positive out"
            )
        self._check_reason_codes()
        self._check_woe(family)
        if not self.model.scales and self.scale != "standard":
            raise ValueError(f"scale: a {self.model.name} model scales columns by itself; leave scale out")
        if self.prepare.texts == "codes" and not self.model.embeds:
            raise ValueError(
                f'prepare.texts: "one_hot" was expected for a {self.model.name} model, codes name values and measure '
                "nothing; codes are for neural parties that embed them"
            )
        if self.protocol.precision == "single" and not family.supports_single_precision:
            raise ValueError(f"protocol.precision: {family.name} sums up no outputs in single precision; leave it out")
        if self.batch_size == "growing" and not self.optimizer.grows:
            raise ValueError(
                f'batch_size: "growing" is for block_descent, whose steps go by all rows; {self.optimizer.name} takes '
                'batches of so many rows, or "all"'
            )
        family.check_job(self)
        family.check_types(self)
        return self

    def _check_reason_codes(self) -> None:
        if not self.reason_codes:
            return
        if not (self.model.by_column and self.model.loss.single):
            raise ValueError(
                f"reason_codes: a model of one output with weights of columns was expected, {self.model.name} with "
                f"{self.model.loss.name} loss is none; leave reason_codes out, or train a logistic model"
            )
        if self.protocol.shares is not None and not self.protocol.shares.open_weights:
            raise ValueError(
                "reason_codes: shares tell nobody its weights, from which codes follow; name the parties that may give "
                "codes in protocol.shares.open_weights, or leave reason_codes out"
            )

    def _check_woe(self, family: Family[Any]) -> None:
        if self.prepare.woe is None:
            return
        if self.protocol.shares is not None:
            raise ValueError(
                "prepare.woe: shares tell nobody how many rows of a bin are of the positive class, which weights of "
                "evidence are made of; use prepare = { bins = 10 }, whose 0/1 columns get weights that rank as well"
            )
        if not family.supports_evidence or self.protocol.residual is None:
            raise ValueError(
                f"prepare.woe: {family.name} of a {self.model.name} model tells nobody classes in bins; leave it out, "
                "or train a linear model by rounds"
            )
        if not (self.model.loss.classifies and self.model.loss.single):
            raise ValueError(
                f"prepare.woe: a loss of two classes was expected, {self.model.loss.name} is none; leave woe out, or "
                "train a logistic model"
            )
        if getattr(self.protocol.residual, "defence", None) is not None:
            raise ValueError(
                "prepare.woe: a defence blurs residuals and not the classes in bins, which tell labels all the same; "
                "leave one of them out"
            )

    @property
    def family(self) -> Family[Any]:
        """The family of training that this job is of. ConfigError if its optimizer names none that is registered."""
        name = self.protocol.family or self.model.family or self.optimizer.family
        if name not in FAMILIES:
            raise ConfigError(
                f"optimizer {self.optimizer.name} belongs to method {name}, which is not registered; add it to FAMILIES"
            )
        return FAMILIES[name]()

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data: what a job file holds and what the digest covers."""
        return to_plain(self)

    def _repr_html_(self) -> str:
        return f"<p><b>Job</b> {self.digest.hex()[:16]}</p>{html.facts(flatten(self.to_dict()))}"

    @property
    def digest(self) -> bytes:
        """SHA-256 of the job, and of the code of a family that is no part of securevfl; parties compare it before they
        start."""
        keys = self.to_dict() | ({} if (outside := self.extension) is None else {"extension": astuple(outside)})
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).digest()

    @property
    def extension(self) -> Extension | None:
        """The package that brings the family of this job; None if securevfl does."""
        return EXTENSIONS.get(self.family.name)

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any]) -> Job:
        """Make a job from the plain data that `to_dict` returns. Raises ConfigError, with one line for each problem."""
        return cls(**keys)

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Load a job from a TOML file, leaving out its tables (`tables_of`). Raises ConfigError, with one line for each
        problem."""
        return cls.from_dict({key: value for key, value in _read(path).items() if key != DATA_KEY})


def tables_of(path: str | Path) -> dict[str, Path]:
    """Return the data files that a job file names under `data`, by party, for a run on one computer; paths are relative
    to the job file's folder.

    They are no part of the job: parties agree on what is done, and each knows where its own table is. ConfigError.
    """
    found = _read(path).get(DATA_KEY, {})
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise ConfigError(
            f'{path}: {DATA_KEY}: a file for each party was expected, as {{ bank = "bank.csv" }}; correct it'
        )
    return {name: Path(path).parent / file for name, file in found.items()}


def _read(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as cause:
        raise ConfigError(f"{path}: a job file was expected there ({cause.strerror}); check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: TOML was expected; {cause}; correct it") from None


# A split that holds every class out in the proportion of the table, found by the party with labels.
#
# Rows are held out by numbers drawn from ids, the same at every party, so none has to say which. There are many ways to
# draw them, numbered by the job's `split`. The party with labels tries the first ones and puts the number of the most
# even one into the job. So the others learn one number of TRIED, log2(TRIED) bits about all labels together, and no
# row's.

TRIED_SPLITS = 256


def stratified(job: Job, party: Party) -> Job:
    """Return the job with the split that is most even in the classes of `party`, whose rows are those of the training.

    PartiesError without labels, ConfigError for a job that holds nothing out or fits numbers.
    """
    if party.y is None:
        raise PartiesError(
            f"party {party.name}: labels were expected to stratify by, none came; ask the party with labels"
        )
    if not job.test_fraction or not job.model.loss.classifies:
        raise ConfigError("stratified: a job that holds rows out and fits classes was expected; set test_fraction")
    _, place = np.unique(party.y, return_inverse=True)
    register, total = party.register, np.bincount(place)
    if len(total) > job.schedule(register).test.size:
        raise ConfigError("stratified: held-out rows for every class were expected; raise test_fraction")

    def uneven(split: int) -> float:
        """Chi-squared of the classes held out against those of the table."""
        test = job.model_copy(update={"split": split}).schedule(register).test
        even = total * (len(test) / len(place))
        return float((((np.bincount(place[test], minlength=len(total)) - even) ** 2) / even).sum())

    return Job.from_dict(job.to_dict() | {"split": min(range(TRIED_SPLITS), key=uneven)})
