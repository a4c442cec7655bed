"""A job: what all parties agree on before anything runs. Read from Python or from a TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from securevfl.config import flat, plain
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.methods import METHODS
from securevfl.methods.base import Method
from securevfl.models import MODELS, metrics
from securevfl.optim import OPTIMIZERS
from securevfl.options import JobOptions, Target
from securevfl.protocols.choice import Protocol

__all__ = ["Job", "Protocol", "Target"]


TABLES = "data"  # the key of a job file that is for the computer it lies on


class Job(JobOptions):
    """One training: what `JobOptions` says, checked by its method."""

    @model_validator(mode="after")
    def _check_target(self) -> Job:
        known = metrics.names(self.model.loss)
        for name, own in (("target", self.target), ("patience", self.patience)):
            if own is not None and own.metric not in known:
                raise ValueError(f"{name}.metric must be one of {', '.join(known)} for this model; choose one of these")
        return self

    @model_validator(mode="after")
    def _check_method(self) -> Job:
        method = self.method
        if not method.trains(type(self.model)):
            own = [name for name, kind in MODELS.items() if method.trains(kind)]
            fits = [name for name, kind in OPTIMIZERS.items() if METHODS[kind.method]().trains(type(self.model))]
            raise ValueError(
                f"optimizer {self.optimizer.name} trains {', '.join(own)} models only; "
                f"use optimizer {' or '.join(fits)} for a {self.model.name} model"
            )
        if self.weights is not None and not (method.weighs and self.model.by_column):
            raise ValueError(
                f"weights: rows count the same in {method.name} of a {self.model.name} model; "
                "leave weights out, or train a linear model"
            )
        self._check_woe(method)
        if self.prepare.texts == "codes" and not self.model.embeds:
            raise ValueError(
                f'prepare.texts: "one_hot" was expected for a {self.model.name} model, codes name values and measure '
                "nothing; codes are for neural parties that embed them"
            )
        if self.protocol.stored is not None and not method.stores:
            raise ValueError(f"protocol.stored: {method.name} stores nothing at a server; leave it out")
        method.check(self)
        return self

    def _check_woe(self, method: Method) -> None:
        if self.prepare.woe is None:
            return
        if not method.bins or self.protocol.residual is None:
            raise ValueError(
                f"prepare.woe: {method.name} of a {self.model.name} model tells nobody classes in bins; leave it out, "
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
    def method(self) -> Method:
        """The family of training that this job is of. ConfigError if its optimizer names none that is registered."""
        name = self.protocol.method or self.model.method or self.optimizer.method
        if name not in METHODS:
            raise ConfigError(
                f"optimizer {self.optimizer.name} belongs to method {name}, which is not registered; add it to METHODS"
            )
        return METHODS[name]()

    def to_dict(self) -> dict[str, Any]:
        """The job as plain data; what a job file holds and what the digest covers."""
        return plain(self)

    def _repr_html_(self) -> str:
        return f"<p><b>Job</b> {self.digest.hex()[:16]}</p>{html.facts(flat(self.to_dict()))}"

    @property
    def digest(self) -> bytes:
        """SHA-256 of the job; parties compare it before they start."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).digest()

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any]) -> Job:
        """The opposite of `to_dict`. ConfigError, one line a problem."""
        return cls(**keys)

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Reads a TOML file, but for its tables (`tables_of`). ConfigError, one line a problem."""
        return cls.from_dict({key: value for key, value in _read(path).items() if key != TABLES})


def tables_of(path: str | Path) -> dict[str, Path]:
    """The files that a job file names under `data`, by party, for a run on one computer; relative to its folder.

    They are no part of the job: parties agree on what is done, and each knows where its own table is. ConfigError.
    """
    found = _read(path).get(TABLES, {})
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise ConfigError(
            f'{path}: {TABLES}: a file for each party was expected, as {{ bank = "bank.csv" }}; correct it'
        )
    return {name: Path(path).parent / file for name, file in found.items()}


def _read(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as cause:
        raise ConfigError(f"{path}: a job file was expected there ({cause.strerror}); check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: TOML was expected; {cause}; correct it") from None
