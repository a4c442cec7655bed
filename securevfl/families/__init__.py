"""The registry of protocol families, each of which is one way to train models together.

A protocol family is a class that defines how several parties train a kind of model, and the disclosures to each of
them. To add one, add its class to `FAMILIES`; its models and optimizers are registered with it. An extension is another
package that provides a protocol family. It is loaded when a job names one of its models or optimizers, if this party
allows the package (`securevfl.base.extensions`). A leak is a disclosure that a job must accept by name.
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

FAMILY_ENTRY_POINTS = "securevfl.families"


class FamilyRegistry(Registry[Family[Any]]):
    """The protocol families by name. The models and optimizers of a protocol family are registered and removed with it.

    Args:
        what: the word for an entry in error messages, such as "family".
        *families: the protocol families that are registered at first.
    """

    def __init__(self, what: str, *families: type[Family[Any]]) -> None:
        super().__init__(what)
        for family in families:
            self[family.name] = family

    def __setitem__(self, name: str, family: type[Family[Any]]) -> None:
        """Register a protocol family with its models and optimizers."""
        super().__setitem__(name, family)
        for registry, kind in _components(family):
            registry[kind.name] = kind

    def __delitem__(self, name: str) -> None:
        """Remove a protocol family with its models and optimizers."""
        for registry, kind in _components(self[name]):
            registry.pop(kind.name, None)
        super().__delitem__(name)


def _components(family: type[Family[Any]]) -> list[tuple[Registry[Any], type[NamedOption]]]:
    return [(MODELS if issubclass(kind, Model) else OPTIMIZERS, kind) for kind in family.components]


FAMILIES = FamilyRegistry("family", RoundsFamily, PhasesFamily, SharesFamily, TransferFamily, FdmlFamily)


FAMILY_EXTENSIONS: dict[str, Extension] = {}  # for each family of another package, that package


def load_more() -> str:
    """Load the protocol families of all extensions that this party allows.

    Returns:
        A hint for a message that names the extensions that are installed but not allowed; empty if there are none.

    Raises:
        ConfigError: if a protocol family, or one of its models and optimizers, has a name that is already registered.
    """
    for name, point in allowed_entry_points(FAMILY_ENTRY_POINTS).items():
        if name in FAMILY_EXTENSIONS:
            continue
        family, extension = load_entry_point(point)
        taken_names = [name] if name in FAMILIES else []
        taken_names += [kind.name for registry, kind in _components(family) if kind.name in registry]
        if taken_names:
            raise ConfigError(
                f"{extension.distribution}: family {name} uses names that are already registered: "
                f"{', '.join(taken_names)}",
                "uninstall the package",
                code="SVFL-JOB-EXTENSION",
                package=extension.distribution,
            )
        if family.name != name:
            raise ConfigError(
                f"{extension.distribution}: the entry point {name} loads a family with another name, {family.name}",
                "uninstall the package",
                code="SVFL-JOB-EXTENSION",
                package=extension.distribution,
            )
        FAMILIES[name], FAMILY_EXTENSIONS[name] = family, extension
    return hint_for_disallowed(FAMILY_ENTRY_POINTS)


MODELS.more = OPTIMIZERS.more = load_more


def leak_kinds() -> dict[str, LeakKind]:
    """Return, by name, the kinds of leaks that jobs of the registered protocol families may accept."""
    return {kind.name: kind for family in FAMILIES.values() for kind in family.leak_kinds}
