"""Names of classes, and which of two classes is the positive one.

Probabilities, AUC, lift, odds and points refer to the positive class. A job may name it. Otherwise it is 1, true or
yes against 0, -1, false or no, and in all other cases the rarer class (of two equally rare ones the one that sorts
last). The positive class is the second in the array of classes. Only the party with labels knows it; no message
contains a class or its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.validation import name_list
from securevfl.errors import ClassError
from securevfl.models.loss import Loss

AFFIRMED = frozenset({"1", "true", "yes"})

DENIED = frozenset({"0", "-1", "false", "no"})

SHOWN = 8  # names of classes in an error


def class_name(label: Any) -> str:
    """How a class is called in a job and on the screen: a whole number without its point."""
    value = label.item() if isinstance(label, np.generic) else label
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def class_names(classes: NDArray[Any]) -> list[str]:
    """Return the names of all these classes, in their order."""
    return [class_name(each) for each in classes.tolist()]


def find_classes(name: str, loss: Loss, y: NDArray[Any], positive: str | None = None) -> NDArray[Any]:
    """Return the classes of party `name` by its labels (n,), as the loss has them; of two the positive one last.

    ClassError if the job names one that is not among them, LabelError if the loss cannot use the labels.
    """
    found = loss.classes(y)
    if not (loss.classifies and loss.single):
        return found
    names = class_names(found)
    if positive is None:
        place = _usual(names, [int((y == each).sum()) for each in found])
    elif positive in names:
        place = names.index(positive)
    else:
        raise unknown_class_error(name, "positive", [positive], names)
    return found if place else found[::-1]


def positive_class(loss: Loss, classes: NDArray[Any] | None) -> str | None:
    """Return the name of the positive class, of a loss of two."""
    return class_names(classes)[1] if classes is not None and loss.classifies and loss.single else None


def unknown_class_error(name: str, key: str, given: Sequence[str], names: Sequence[str]) -> ClassError:
    """Make the error of a key that names classes which party `name` does not have; it lists those that the party
    has."""
    came = ", ".join(given)
    return ClassError(
        f"party {name}: {key}: of the classes {name_list(names, SHOWN)} was expected, {came} came; correct it"
    )


def _usual(names: Sequence[str], counts: Sequence[int]) -> int:
    """Choose the place of the positive one of two classes, if nobody names it."""
    words = [name.lower() for name in names]
    for place in (0, 1):
        if words[place] in AFFIRMED and words[1 - place] in DENIED:
            return place
    return 0 if counts[0] < counts[1] else 1
