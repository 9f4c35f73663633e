"""Which classes there are, according to the observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from setwise.distributions import Categorical
from setwise.likelihood.aggregate import Aggregate
from setwise.likelihood.outcome import ClassLabel, Targets
from setwise.observations import Observations

__all__ = ["class_labels", "in_order"]


def class_labels(given: Any, observations: Sequence[Observations]) -> NDArray[Any]:
    """The class labels in order: as given (their number, or a list), else from y.

    >>> import setwise as sw
    >>> few = sw.Observations(sw.Direct(), [[0], [1], [2]], ["cat", "dog", "cat"])
    >>> class_labels(None, [few]).tolist()
    ['cat', 'dog']
    """
    named = _named(observations)
    if given is None:
        return labels_array(named) if named else _numbered(_number(observations))
    if not isinstance(given, int | np.integer):
        return labels_array(given)
    if not named:
        return _numbered(int(given))
    if len(named) != given:
        raise ValueError(
            f"n_classes={given}, but the observations name {len(named)} classes, {named[:20]}: "
            f"leave n_classes out, or list all labels, n_classes=[…]"
        )
    return labels_array(named)


def labels_array(labels: Any) -> NDArray[Any]:
    """Class labels as an array, checked."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(set(array.tolist())) != len(array):
        raise ValueError(
            f"n_classes is a number, or a list of distinct class labels; got {labels!r}"
        )
    return array


def _numbered(n: int) -> NDArray[Any]:
    if n > Categorical.most:  # before there is an array of them
        raise ValueError(f"n_classes is {n}, which is more than {Categorical.most}")
    return np.arange(n)


def in_order(
    observations: Sequence[Observations], labels: NDArray[Any] | None
) -> list[Observations]:
    """The same observations, with y about the classes in this order."""
    return [o if labels is None else _in_order(o, labels.tolist()) for o in observations]


def _in_order(o: Observations, wanted: list[Any]) -> Observations:
    if o.classes is None or list(o.classes) == wanted:
        return o
    lost = [label for label in o.classes if label not in wanted]
    if lost or (len(o.classes) < len(wanted) and not _names_one(o.aggregate)):
        raise ValueError(
            f"y of {o.aggregate!r} is about the classes {list(o.classes)[:20]}, but those of the "
            f"model are {wanted[:20]}"
        )
    place = np.array([wanted.index(label) for label in o.classes], np.int64)
    return o.with_classes(wanted, place)


def _names_one(aggregate: Aggregate) -> bool:
    """Whether y is the name of one class, of which there may be more than y shows."""
    return isinstance(aggregate.outcome(Targets(2, discrete=True), None), ClassLabel)


def _named(observations: Sequence[Observations]) -> list[Any]:
    """The labels that observations name; first those of y that has a number for each class."""
    with_names = [o for o in observations if o.classes is not None]
    with_names.sort(key=lambda o: _names_one(o.aggregate))
    return list(dict.fromkeys(label for o in with_names for label in o.classes or ()))


def _number(observations: Sequence[Observations]) -> int:
    with_y = [o for o in observations if o.y is not None and len(o)]
    told = {o: n for o in with_y if (n := o.aggregate.told_classes(o.y)) is not None}
    known = [n for o, n in told.items() if not _names_one(o.aggregate)]
    for o in told:
        if _names_one(o.aggregate):
            _check_numbers(o, from_zero=not known)
    default = (o.aggregate.bare.default_n_classes for o in observations)
    numbers = list(told.values()) or [n for n in default if n is not None]
    if not numbers:
        kinds = " and ".join(dict.fromkeys(repr(o.aggregate) for o in observations))
        raise ValueError(
            f"labels of {kinds} do not tell how many classes there are: say so, as in "
            f"AggregateClassifier(3) or AggregateClassifier(['a', 'b', 'c']). Where targets are "
            f"numbers, use AggregateRegressor"
        )
    if max(numbers) < 2:
        raise ValueError("all labels are of one class: there is nothing to tell apart")
    return max(numbers)


def _check_numbers(o: Observations, from_zero: bool) -> None:
    """Raises where y holds numbers that cannot be those of classes."""
    y = np.asarray(o.y, np.float64)
    if (broken := y != np.floor(y)).any():
        raise TypeError(
            f"y of {o.aggregate!r} holds {y[broken][0]:g}, which is no class: use "
            f"AggregateRegressor for numbers"
        )
    seen = np.unique(y)
    if seen[0] < 0 or (from_zero and seen[0] > 0):
        shown = [int(v) for v in seen[:20]]
        raise ValueError(
            f"y of {o.aggregate!r} is one of {shown}, but classes are counted from 0: say that "
            f"these are labels, Observations(…, classes={shown}), or give n_classes"
        )
