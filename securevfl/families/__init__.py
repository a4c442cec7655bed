"""The families of training. Adding one is one line here; models and optimizers that it brings come with it.

A family of another package is loaded when a job names what it brings and this party allows it (`base.extensions`).
"""

from __future__ import annotations

from typing import Any

from securevfl.base.config import NamedOption, Registry
from securevfl.base.extensions import Extension, allowed_entry_points, hint_for_disallowed, load_entry_point
from securevfl.disclosure.leaks import LeakKind
from securevfl.errors import ConfigError
from securevfl.families.family import Family
from securevfl.families.fdml.fdml_family import FdmlFamily
from securevfl.families.fdskl.fdskl_family import PhasesFamily
from securevfl.families.rounds.rounds_family import RoundsFamily
from securevfl.families.shares.shares_family import SharesFamily
from securevfl.families.transfer.transfer_family import TransferFamily
from securevfl.models import MODELS
from securevfl.models.base import Model
from securevfl.optim import OPTIMIZERS

GROUP = "securevfl.families"


class FamilyRegistry(Registry[Family[Any]]):
    """The families by name. With one come the models and optimizers that it brings, and they go with it."""

    def __init__(self, what: str, *families: type[Family[Any]]) -> None:
        super().__init__(what)
        for family in families:
            self[family.name] = family

    def __setitem__(self, name: str, family: type[Family[Any]]) -> None:
        super().__setitem__(name, family)
        for registry, kind in _brought(family):
            registry[kind.name] = kind

    def __delitem__(self, name: str) -> None:
        for registry, kind in _brought(self[name]):
            registry.pop(kind.name, None)
        super().__delitem__(name)


def _brought(family: type[Family[Any]]) -> list[tuple[Registry[Any], type[NamedOption]]]:
    return [(MODELS if issubclass(kind, Model) else OPTIMIZERS, kind) for kind in family.components]


FAMILIES = FamilyRegistry("family", RoundsFamily, PhasesFamily, SharesFamily, TransferFamily, FdmlFamily)


EXTENSIONS: dict[str, Extension] = {}  # where a family comes from that is no part of securevfl, by its name


def load_more() -> str:
    """Load the families of other packages that this party allows; say which are installed and not allowed.
    ConfigError if one has a name that is taken."""
    for name, point in allowed_entry_points(GROUP).items():
        if name in EXTENSIONS:
            continue
        family, extension = load_entry_point(point)
        taken = [each for each in (name,) if each in FAMILIES]
        taken += [kind.name for registry, kind in _brought(family) if kind.name in registry]
        if taken or family.name != name:
            raise ConfigError(
                f"{extension.distribution}: names that nobody else has were expected of family {name}, "
                f"{', '.join(taken) or family.name} is another one; uninstall it"
            )
        FAMILIES[name], EXTENSIONS[name] = family, extension
    return hint_for_disallowed(GROUP)


MODELS.more = OPTIMIZERS.more = load_more


def leak_kinds() -> dict[str, LeakKind]:
    """Return by name the leaks that jobs may accept, as the registered families list them."""
    return {kind.name: kind for family in FAMILIES.values() for kind in family.leak_kinds}
