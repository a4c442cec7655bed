"""A family implements four small interfaces; three are enough for a family in another package."""

from __future__ import annotations

import inspect

import pytest

from securevfl.families import FAMILIES
from securevfl.families.family import Family
from securevfl.families.family_outputs import FamilyOutputs
from securevfl.families.family_prediction import FamilyPrediction
from securevfl.families.family_training import FamilyTraining
from securevfl.families.job_rules import JobRules

INTERFACES = (JobRules, FamilyOutputs, FamilyTraining, FamilyPrediction)
MAX_METHODS = 9


def methods(interface: type) -> set[str]:
    return {name for name, value in vars(interface).items() if inspect.isfunction(value) and not name.startswith("_")}


@pytest.mark.parametrize("interface", INTERFACES)
def test_an_interface_has_few_methods(interface: type) -> None:
    assert 0 < len(methods(interface)) <= MAX_METHODS


def test_prediction_has_a_default_for_every_method() -> None:
    assert not getattr(FamilyPrediction, "__abstractmethods__", None)
    for interface in (JobRules, FamilyOutputs, FamilyTraining):
        assert interface.__abstractmethods__


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_overrides_methods_of_interfaces_only(name: str) -> None:
    family = FAMILIES[name]
    interface_methods = set().union(*map(methods, INTERFACES))
    assert issubclass(family, Family)
    assert methods(family) <= interface_methods
