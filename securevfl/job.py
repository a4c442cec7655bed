"""A job: the options of one training, on which all parties agree before anything runs.

A job is created in Python or read from a TOML file. The options themselves are in `securevfl.options.JobOptions`; this
module checks that they fit together. Every job has a protocol family (`securevfl.families`), the kind of protocol that
trains its model, for example `rounds` (homomorphic encryption) or `shares` (secret sharing).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from pydantic import field_validator, model_validator

from securevfl.base.config import flatten, to_plain
from securevfl.base.extensions import Extension
from securevfl.data.column_types import ColumnType, read_types
from securevfl.data.duplicates import Duplicates, check_duplicates
from securevfl.data.party import Party
from securevfl.data.query_rows import file_of_table
from securevfl.display import html
from securevfl.errors import ConfigError, PartiesError
from securevfl.families import FAMILIES, FAMILY_EXTENSIONS, leak_kinds
from securevfl.families.family import Family, FamilyJob
from securevfl.models import MODELS, metrics
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.optim import OPTIMIZERS
from securevfl.optim.defaults import RESIDUAL_FAMILIES, why_not_on_shares
from securevfl.options import JobKeywords
from securevfl.untrusted import UntrustedInputError, check_plain, read_toml

DATA_KEY = "data"
"""The key of a job file that lists the parties' data files on one computer; it is not part of the job."""
COLUMNS_KEY = "columns"
"""The key of a job file that declares the types of columns, by party; it is not part of the job either."""
DUPLICATES_KEY = "duplicates"
"""The key of a job file that states what happens to several rows with one id, for all parties or by party; it is not
part of the job either."""
LOCAL_KEYS = DATA_KEY, COLUMNS_KEY, DUPLICATES_KEY
"""The keys of a job file that are not part of the job: each party may state its own."""


class Job(FamilyJob):
    """One training: the options of `JobOptions`, checked by its protocol family.

    Args:
        **options: the options by name, as `JobKeywords` states their types.
    """

    def __init__(self, /, **options: Unpack[JobKeywords]) -> None:
        keywords: dict[str, Any] = {**options}
        super().__init__(**keywords)

    @field_validator("accepts")
    @classmethod
    def _check_accepts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = leak_kinds()
        if unknown := [name for name in value if name not in known]:
            raise ValueError(f"{', '.join(unknown)}: no leak has this name; choose from {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _check_target(self) -> Job:
        known = metrics.metric_names(self.model.loss)
        for name, option in (("target", self.target), ("patience", self.patience)):
            if option is not None and option.metric not in known:
                raise ValueError(f"{name}.metric: must be one of {', '.join(known)} for this model")
        return self

    @model_validator(mode="after")
    def _check_method(self) -> Job:
        family = self.family
        if not family.supports_model(type(self.model)):
            supported = [name for name, kind in MODELS.items() if family.supports_model(kind)]
            fits = {
                name: kind.family
                for name, kind in OPTIMIZERS.items()
                if FAMILIES[kind.family]().supports_model(type(self.model))
            }
            if self.protocol.family is not None:
                fitting = fits.get(self.optimizer.name) or next(iter(fits.values()), None)
                sends_residuals = (self.model.family or fitting) in RESIDUAL_FAMILIES
                remedy = (
                    'use protocol = "ckks"'
                    if sends_residuals
                    else 'use protocol = {sum = "auto"}, which sends no residual'
                )
                raise ValueError(
                    f"model: protocol.{self.protocol.family} trains {', '.join(supported)} models only: "
                    f"{why_not_on_shares(self.model) or self.model.name + ' is another model'}; {remedy}"
                )
            raise ValueError(
                f"optimizer: {self.optimizer.name} trains {', '.join(supported)} models only; "
                f"use optimizer {' or '.join(fits)} for a {self.model.name} model"
            )
        if self.model.pair_rank and not family.trains_pairs:
            raise ValueError(
                f"model.pairs: {family.name} does not train products of two parties' components; use protocol = "
                '"shares", or leave pairs out'
            )
        supports_weights = family.supports_row_weights and (self.model.by_column or self.model.family == family.name)
        if self.weights is not None and not supports_weights:
            raise ValueError(
                f"weights: {family.name} does not support row weights for a {self.model.name} model; "
                "leave weights out, or train a linear model"
            )
        if self.exposure is not None and not (
            isinstance(self.model.loss, LogLinkLoss) and family.supports_row_weights and self.model.by_column
        ):
            raise ValueError(
                f"exposure: {family.name} supports it only for linear models of counts or amounts, not for "
                f"{self.model.loss.name} loss; use poisson, gamma, tweedie or negative_binomial, or leave exposure out"
            )
        if self.positive is not None and not (self.model.loss.classifies and self.model.loss.single):
            raise ValueError(f"positive: {self.model.loss.name} loss does not have two classes; leave positive out")
        self._check_reason_codes()
        self._check_woe(family)
        if not self.model.scales and self.scale != "standard":
            raise ValueError(f"scale: a {self.model.name} model does not use scaled columns; leave scale out")
        if self.prepare.texts == "codes" and not self.model.embeds:
            raise ValueError(
                'prepare.texts: "codes" is only for neural models, which embed codes as vectors, not for a '
                f'{self.model.name} model; use "one_hot"'
            )
        if self.protocol.precision == "single" and not family.supports_single_precision:
            raise ValueError(
                f"protocol.precision: {family.name} does not sum outputs in single precision; leave precision out"
            )
        if self.batch_size == "growing" and not self.optimizer.grows:
            raise ValueError(
                f'batch_size: "growing" is for block_descent; for {self.optimizer.name} set a number of rows, or "all"'
            )
        family.check_job(self)
        family.check_types(self)
        return self

    @property
    def needed_tools(self) -> tuple[str, ...]:
        """The options of this job that need a tool from a separate package, which all parties must then install."""
        return ("reason_codes",) if self.reason_codes else ()

    def _check_reason_codes(self) -> None:
        if not self.reason_codes:
            return
        if not (self.model.by_column and self.model.loss.single):
            raise ValueError(
                "reason_codes: they need a model with one output and one weight for each column, and "
                f"{self.model.name} with {self.model.loss.name} loss is no such model; leave reason_codes out, or "
                "train a logistic model"
            )
        if self.protocol.shares is not None and not self.protocol.shares.open_weights:
            raise ValueError(
                "reason_codes: they are computed from weights, and a training on shares opens no weights by default; "
                "name the parties that may send codes in protocol.shares.open_weights, or leave reason_codes out"
            )

    def _check_woe(self, family: Family[Any]) -> None:
        if self.prepare.woe is None:
            return
        if self.protocol.shares is not None:
            raise ValueError(
                "prepare.woe: weights of evidence need the number of positive rows of each bin, which shares do not "
                "disclose; use prepare = { bins = 10 } instead: its 0/1 columns rank rows equally well"
            )
        if not family.supports_evidence or self.protocol.residual is None:
            raise ValueError(
                f"prepare.woe: weights of evidence need class counts of bins, which {family.name} does not disclose "
                f"for a {self.model.name} model; leave woe out, or train a linear model by rounds"
            )
        if not (self.model.loss.classifies and self.model.loss.single):
            raise ValueError(
                f"prepare.woe: {self.model.loss.name} loss does not have two classes; leave woe out, or train a "
                f"logistic model"
            )
        if getattr(self.protocol.residual, "defence", None) is not None:
            raise ValueError(
                "prepare.woe: a defence adds noise to residuals, but class counts of bins would disclose labels "
                "without noise; leave woe or the defence out"
            )

    @property
    def family(self) -> Family[Any]:
        """The protocol family of this job.

        Raises:
            ConfigError: if it is not registered.
        """
        name = self.protocol.family or self.model.family or self.optimizer.family
        if name not in FAMILIES:
            raise ConfigError(
                f"optimizer {self.optimizer.name} belongs to family {name}, which is not registered",
                "add it to FAMILIES",
                code="SVFL-JOB-EXTENSION",
                family=name,
            )
        return FAMILIES[name]()

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data, as in a job file; the digest covers it."""
        return to_plain(self)

    def _repr_html_(self) -> str:
        return f"<p><b>Job</b> {self.digest.hex()[:16]}</p>{html.facts(flatten(self.to_dict()))}"

    @property
    def digest(self) -> bytes:
        """SHA-256 of the job and of the extension with its protocol family. The parties compare it at the start."""
        keys = self.to_dict() | ({} if (outside := self.extension) is None else {"extension": astuple(outside)})
        return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).digest()

    @property
    def extension(self) -> Extension | None:
        """The extension package that provides the protocol family; None if securevfl itself provides it."""
        return FAMILY_EXTENSIONS.get(self.family.name)

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any]) -> Job:
        """Create a job from plain data as returned by `to_dict`. A ConfigError lists each problem on its own line."""
        try:
            check_plain(keys)
            return cls(**{str(key): value for key, value in keys.items()})
        except UntrustedInputError as cause:
            raise ConfigError(
                f"the job cannot be used: {cause}",
                "correct the part of the job that the message names",
                code="SVFL-JOB-FILE",
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Load a job from a TOML file. Keys that concern one party alone (`data`, `columns`, `duplicates`) are skipped.

        A ConfigError is raised with one line for each problem.
        """
        return cls.from_dict({key: value for key, value in _read(path).items() if key not in LOCAL_KEYS})


def tables_of(path: str | Path) -> dict[str, Path]:
    """Return the data files that a job file names under `data`, by party, for a run on one computer.

    The files are not part of the job, because each party alone knows where its table is stored.

    Args:
        path: the job file. Paths in it are relative to its folder.

    Returns:
        The file of each party.

    Raises:
        ConfigError: if the file cannot be read, or `data` is not a table of files.
    """
    files = _read(path).get(DATA_KEY, {})
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ConfigError(
            f"{path}: {DATA_KEY} does not name one file for each party",
            f'write for example {DATA_KEY} = {{ bank = "bank.csv" }}',
            code="SVFL-JOB-FILE",
            path=str(path),
        )
    return {name: Path(path).parent / file_of_table(file) for name, file in files.items()}


def column_types_of(path: str | Path) -> dict[str, dict[str, ColumnType]]:
    """Return the types of columns that a job file declares under `columns`, by party.

    They are not part of the job, and other parties do not learn them.

    Args:
        path: the job file.

    Returns:
        The declared types of each party.

    Raises:
        ConfigError: if the file cannot be read, or a declaration cannot be used.
    """
    declarations = _read(path).get(COLUMNS_KEY, {})
    if not isinstance(declarations, dict) or not all(isinstance(types, dict) for types in declarations.values()):
        raise ConfigError(
            f"{path}: {COLUMNS_KEY} does not contain a table of column types for each party",
            f'write for example {COLUMNS_KEY} = {{ bank = {{ branch = "category" }} }}',
            code="SVFL-JOB-FILE",
            path=str(path),
        )
    return {name: read_types(types) for name, types in declarations.items()}


def duplicates_of(path: str | Path, parties: Iterable[str]) -> dict[str, Duplicates]:
    """Return how each party treats several rows with the same id, as the job file's key `duplicates` states.

    The value is "refuse" (the default), "first" or "last" for all parties, or a table of these values by party. The
    other parties do not learn it, because it is not part of the job.

    Args:
        path: the job file.
        parties: the names of the parties.

    Returns:
        The value of each party.

    Raises:
        ConfigError: if the file cannot be read, or the value is none of the three.
    """
    value = _read(path).get(DUPLICATES_KEY, "refuse")
    by_party = value if isinstance(value, dict) else dict.fromkeys(parties, value)
    checked = {name: check_duplicates(item, f"{path}: {DUPLICATES_KEY}") for name, item in by_party.items()}
    return dict.fromkeys(parties, check_duplicates("refuse")) | checked


def column_types_in(path: str | Path) -> dict[str, ColumnType]:
    """Return the column types of one party, which a TOML file declares in lines such as `branch = "category"`."""
    return read_types(_read(path))


def _read(path: str | Path) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            return read_toml(file)
    except OSError as cause:
        raise ConfigError(
            f"{path}: the job file cannot be read ({cause.strerror})",
            "check the path",
            code="SVFL-JOB-FILE",
            path=str(path),
        ) from None
    except UntrustedInputError as cause:
        raise ConfigError(
            f"{path}: the job file is not valid TOML: {cause}",
            "correct the line that the message names",
            code="SVFL-JOB-FILE",
            path=str(path),
        ) from None


TRIED_SPLITS = 256
"""Number of splits among which `stratified` chooses."""


def stratified(job: Job, party: Party) -> Job:
    """Return the job with a split whose held-out rows have nearly the same share of each class as all rows.

    The number `split` of a job determines, with the rows' ids, which rows all parties hold out. The party with labels
    tries `split` = 0 to `TRIED_SPLITS` - 1 and chooses the best. The other parties learn the chosen number, which
    reveals at most log2(`TRIED_SPLITS`) bits about all labels together.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party with labels, with the rows of the training.

    Returns:
        The job.

    Raises:
        PartiesError: if the party has no labels.
        ConfigError: if the job holds no rows out, has no classes, or holds out too few rows.
    """
    if party.y is None:
        raise PartiesError(
            f"party {party.name}: stratification needs labels, and this party has none",
            "run it at the party with labels",
            code="SVFL-PARTIES-LABELS",
            party=party.name,
        )
    if not job.test_fraction or not job.model.loss.classifies:
        raise ConfigError(
            "stratified: the job holds no rows out, or its model has no classes",
            "set test_fraction",
            code="SVFL-JOB-COMBINATION",
        )
    _, class_index = np.unique(party.y, return_inverse=True)
    register, total = party.register, np.bincount(class_index)
    if len(total) > job.schedule(register).test.size:
        raise ConfigError(
            "stratified: fewer rows are held out than there are classes",
            "raise test_fraction",
            code="SVFL-LABEL-SPLIT",
        )

    def uneven(split: int) -> float:
        """Return the chi-squared distance between the class counts of held-out rows and those expected."""
        test = job.model_copy(update={"split": split}).schedule(register).test
        expected = total * (len(test) / len(class_index))
        return float((((np.bincount(class_index[test], minlength=len(total)) - expected) ** 2) / expected).sum())

    return Job.from_dict(job.to_dict() | {"split": min(range(TRIED_SPLITS), key=uneven)})
