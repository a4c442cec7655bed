"""The families of training. Adding one is one line here; models and optimizers that it brings come with it."""

from __future__ import annotations

from typing import Any

from securevfl.base.config import Named, Registry
from securevfl.disclosure.leaks import LeakKind
from securevfl.families.base import Method
from securevfl.families.fdml.fdml import FdmlMethod
from securevfl.families.fdskl.fdskl import Phases
from securevfl.families.rounds.rounds import Rounds
from securevfl.families.shares.shares import SharesMethod
from securevfl.families.transfer.transfer import TransferLearning
from securevfl.models import MODELS
from securevfl.models.base import Model
from securevfl.optim import OPTIMIZERS


class Families(Registry[Method[Any]]):
    """The families by name. With one come the models and optimizers that it brings, and they go with it."""

    def __init__(self, what: str, *methods: type[Method[Any]]) -> None:
        super().__init__(what)
        for method in methods:
            self[method.name] = method

    def __setitem__(self, name: str, method: type[Method[Any]]) -> None:
        super().__setitem__(name, method)
        for registry, kind in _brought(method):
            registry[kind.name] = kind

    def __delitem__(self, name: str) -> None:
        for registry, kind in _brought(self[name]):
            registry.pop(kind.name, None)
        super().__delitem__(name)


def _brought(method: type[Method[Any]]) -> list[tuple[Registry[Any], type[Named]]]:
    return [(MODELS if issubclass(kind, Model) else OPTIMIZERS, kind) for kind in method.brings]


METHODS = Families("method", Rounds, Phases, SharesMethod, TransferLearning, FdmlMethod)


def leak_kinds() -> dict[str, LeakKind]:
    """Return by name the leaks that jobs may accept, as the registered methods list them."""
    return {kind.name: kind for method in METHODS.values() for kind in method.leak_kinds}
