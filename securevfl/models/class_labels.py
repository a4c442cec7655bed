"""Names of classes, and which of two classes is the positive one.

Probabilities, AUC, lift, odds and points refer to the positive class. A job may name it. Otherwise it is 1, true or yes
against 0, -1, false or no, and in all other cases the rarer class (of two equally rare ones the one that sorts last).
The positive class is the second in the array of classes. Only the party with labels knows it; no message contains a
class or its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.party import Party
from securevfl.data.validation import name_list
from securevfl.errors import ClassError
from securevfl.models.loss import Loss, check_numeric_labels

POSITIVE_NAMES = frozenset({"1", "true", "yes"})
NEGATIVE_NAMES = frozenset({"0", "-1", "false", "no"})
MAX_LISTED_CLASSES = 8
"""Maximum number of class names in an error message."""


def class_name(label: Any) -> str:
    """Return a class's name in jobs and on screens: its text, with integers written without a decimal point."""
    value = label.item() if isinstance(label, np.generic) else label
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def class_names(classes: NDArray[Any]) -> list[str]:
    """Return the names of classes, in their order."""
    return [class_name(label) for label in classes.tolist()]


def find_classes(name: str, loss: Loss, y: NDArray[Any], positive: str | None = None) -> NDArray[Any]:
    """Return the classes of a party's labels, the positive one of two classes last.

    Args:
        name: name of the party, which error messages state.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        y: the labels (n,).
        positive: the name of the positive class if the job states one.

    Returns:
        The classes as `loss.classes` returns them. Raises LabelError if the loss cannot use the labels, ClassError if
        the labels do not have the class that the job names.
    """
    classes = loss.classes(y)
    if not (loss.classifies and loss.single):
        return classes
    names = class_names(classes)
    if positive is None:
        index = _default_positive(names, [int((y == label).sum()) for label in classes])
    elif positive in names:
        index = names.index(positive)
    else:
        raise unknown_class_error(name, "positive", [positive], names)
    return classes if index else classes[::-1]


def classes_of(party: Party, loss: Loss, rows: NDArray[np.intp] | None = None, positive: str | None = None) -> Any:
    """Return the classes of a party's labels as `find_classes` does; an error about a row names the row of its file.

    Args:
        party: the party with labels.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        rows: the rows (k,) whose labels determine the classes; by default all.
        positive: the name of the positive class if the job states one.

    Returns:
        The classes.
    """
    labels = party.labels if rows is None else party.labels[rows]
    if not loss.classifies:
        positions = np.arange(len(party)) if rows is None else rows
        if party.file_rows is None:
            check_numeric_labels(loss.name, labels, positions)
        else:
            check_numeric_labels(loss.name, labels, party.file_rows[positions], f"the table of {party.name}")
    return find_classes(party.name, loss, labels, positive)


def positive_class(loss: Loss, classes: NDArray[Any] | None) -> str | None:
    """Return the name of the positive class of two; None if there are not two classes."""
    return class_names(classes)[1] if classes is not None and loss.classifies and loss.single else None


def unknown_class_error(name: str, key: str, unknown: Sequence[str], names: Sequence[str]) -> ClassError:
    """Return the error for a job option that names classes which the labels do not have.

    Args:
        name: name of the party.
        key: the option of the job.
        unknown: the classes that it names.
        names: the classes of the labels.

    Returns:
        The error.
    """
    return ClassError(
        f"party {name}: {key} names {', '.join(unknown)}, and the labels have the classes "
        f"{name_list(names, MAX_LISTED_CLASSES)}",
        f"correct {key}",
        code="SVFL-LABEL-CLASSES",
        party=name,
        key=key,
    )


def _default_positive(names: Sequence[str], counts: Sequence[int]) -> int:
    """Return the index of the positive one of two classes, if the job does not name it."""
    lower = [name.lower() for name in names]
    for index in (0, 1):
        if lower[index] in POSITIVE_NAMES and lower[1 - index] in NEGATIVE_NAMES:
            return index
    return 0 if counts[0] < counts[1] else 1
