"""The registry of likelihood rules, and `log_likelihood`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from setwise._autograd import call
from setwise.distributions import kinds_of, map_parameters, parameters
from setwise.errors import SetError
from setwise.likelihood.aggregate import Aggregate, aggregates
from setwise.sets import Sets

RuleFunction = Callable[[Any, Any, Sets, Any], Tensor]
ClassPosterior = Callable[[Any, Any, Sets, Any], "tuple[Tensor, Tensor] | None"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """log p(y | θ) for one aggregate and one distribution (or kind of distributions)."""

    aggregate: type[Aggregate]
    distribution: type
    function: RuleFunction
    how: str
    exact: bool
    class_posterior: ClassPosterior | None = None
    counts: bool = False

    def check_counts(self, sets: Sets) -> None:
        """Raises where members stand for several individuals and the rule does not support that."""
        if not self.counts and sets.counts is not None and (sets.counts > 1).any():
            raise ValueError(
                f"{self.aggregate.__name__} of {self.distribution.__name__} targets reads members "
                f"one by one, but {sets!r} have counts: list every individual, with sets.expand()"
            )


_RULES: dict[tuple[type, type], Rule] = {}


def _known() -> dict[tuple[type, type], Rule]:
    """All rules; importing the library's own aggregates registers theirs."""
    import_module("setwise.aggregates")
    return _RULES


def likelihood(
    aggregate: type[Any],
    distribution: type,
    *,
    exact: bool = True,
    class_posterior: ClassPosterior | None = None,
    counts: bool = False,
) -> Callable[[RuleFunction], RuleFunction]:
    """Registers `rule(aggregate, distribution, sets, y) -> (n_sets,)` for a pair of classes.

    The rule gets `distribution` batched over the *members* (so `sets.flat is sets`), with unchecked
    parameters, and `y` as a tensor on their device. The first line of its docstring says how it
    computes; `exact=False` marks rules with a stated numerical error. `distribution` may also be
    `Continuous`, `Discrete` or `Count`, for every family of that kind. `counts=True` says that the
    rule heeds `sets.counts`, as `sets.sum`, `sets.mean` and `sets.logsumexp` do by themselves.

    For classes, `class_posterior(aggregate, distribution, sets, y)` may return log p(y) of each set
    and P(class | y) of each member in closed form (None where there is none), so that learners need
    not differentiate the rule; `check_aggregate` compares the two. What torch can differentiate of
    it also gives the curvature.
    """

    def register(function: RuleFunction) -> RuleFunction:
        before = _RULES.get((aggregate, distribution))
        if before is not None and not _again(before.function, function):
            raise ValueError(
                f"a rule for {aggregate.__name__} of {distribution.__name__} exists already: "
                f"{_place(before.function)} and {_place(function)} both register one; drop one of "
                f"them, or register it for a subclass"
            )
        how = (function.__doc__ or "").strip().split("\n")[0].rstrip(".")
        _RULES[aggregate, distribution] = Rule(
            aggregate, distribution, function, how, exact, class_posterior, counts
        )
        return function

    return register


def _place(function: RuleFunction) -> str:
    """File and line of a rule."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _again(before: RuleFunction, function: RuleFunction) -> bool:
    """Whether this is the same rule, from a module or a notebook cell that was run again."""
    before, function = inspect.unwrap(before), inspect.unwrap(function)
    interactive = function.__module__ == "__main__"
    same = (before.__module__, before.__qualname__) == (function.__module__, function.__qualname__)
    return _place(before) == _place(function) or (interactive and same)


def rules() -> list[Rule]:
    """Every registered rule."""
    return list(_known().values())


def find_rule(aggregate: type[Aggregate], distribution: type[Distribution]) -> Rule:
    """The most specific rule for a pair: the aggregate's MRO first, then the distribution's."""
    known = _known()
    for a in aggregate.__mro__:
        for d in kinds_of(distribution):
            if (a, d) in known:
                return known[a, d]
    kinds = kinds_of(distribution)
    for_aggregate = sorted({d.__name__ for a, d in known if issubclass(aggregate, a)})
    bases = {a for a, d in known if d in kinds}
    for_distribution = sorted(a.__name__ for a in aggregates() if not bases.isdisjoint(a.__mro__))
    raise TypeError(
        f"no likelihood rule is known for {aggregate.__name__} of {distribution.__name__}. "
        f"{aggregate.__name__} is known for: {', '.join(for_aggregate) or 'nothing'}. "
        f"{distribution.__name__} is known with: {', '.join(for_distribution) or 'nothing'}. "
        f"Add one with @setwise.likelihood({aggregate.__name__}, {distribution.__name__})"
    )


def evaluate(aggregate: Aggregate, members: Distribution, sets: Sets, y: Any) -> Tensor:
    """log p(y) with the *members'* distribution and a checked y: what learners call."""
    rule = find_rule(type(aggregate), type(members))
    rule.check_counts(sets)
    reference = next(iter(parameters(members).values()))
    if y is not None:
        y = torch.as_tensor(y, device=reference.device)
        y = y.to(reference.dtype) if y.is_floating_point() else y
    if not len(sets):
        return reference.sum() * 0 + reference.new_zeros(0)
    return rule.function(aggregate, members, sets.flat, y)


def in_parts(
    parts: Sequence[tuple[NDArray[np.int64], Sets]],
    rule: Callable[[NDArray[np.int64], Sets], Tensor],
) -> Tensor:
    """`rule(set numbers, those sets)` of each part, as one tensor in the order of the sets."""
    pieces = []
    for which, part in parts:
        try:
            pieces.append(rule(which, part))
        except SetError as error:  # its number counts the sets of the part
            raise SetError(which[error.set], error.said, error.of) from None
    order = np.argsort(np.concatenate([which for which, _ in parts]))
    return torch.cat(pieces)[torch.as_tensor(order, device=pieces[0].device)]


def by_size(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Lets a rule that needs sets of one size serve ragged sets, size by size."""

    @functools.wraps(rule)
    def ragged(aggregate: Any, distribution: Any, sets: Sets, y: Any, *more: Any) -> Tensor:
        def of_one_size(which: NDArray[np.int64], part: Sets) -> Tensor:
            members = map_parameters(distribution, part.members)
            return rule(aggregate, members, part.flat, None if y is None else y[which], *more)

        if sets.size is not None:
            return rule(aggregate, distribution, sets, y, *more)
        return in_parts(sets.by_size(), of_one_size)

    return ragged


def log_likelihood(aggregate: Aggregate, distribution: Distribution, sets: Any, y: Any) -> Tensor:
    """log p(y | θ) of each set: the probability (density) of the observation, targets unseen.

    `distribution` is a `torch.distributions` object with one entry per row of the instance table.
    y may be a tensor. One that is on a device stays there: it is checked, by a copy, only when it
    comes for the first time and after it was changed.

    >>> import setwise as sw
    >>> rows = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    >>> sw.log_likelihood(sw.Mean(), rows, sw.Sets([[0, 1], [2, 3]]), [0.0, 1.0])
    tensor([-0.5724, -1.5724])
    """
    if not isinstance(aggregate, Aggregate):
        raise TypeError(
            f"aggregate must be an Aggregate such as setwise.Mean(), got {aggregate!r}"
            + (" (a class: call it)" if isinstance(aggregate, type) else "")
        )
    if not isinstance(distribution, Distribution):
        raise TypeError(f"distribution must be a torch.distributions object, got {distribution!r}")
    if len(distribution.batch_shape) != 1 or distribution.event_shape:
        raise ValueError(
            f"distribution must have one entry per row, batch_shape (n_rows,) and event_shape (); "
            f"got {tuple(distribution.batch_shape)} and {tuple(distribution.event_shape)}"
        )
    rule = find_rule(type(aggregate), type(distribution))
    sets = sets if isinstance(sets, Sets) else Sets(sets)
    y = _checked(aggregate, sets, y)
    members: Any = map_parameters(distribution, sets.members)
    transformed = torch._C._are_functorch_transforms_active()  # whose own way to derivatives it is
    closed = None if transformed else rule.class_posterior
    if closed is not None and len(sets) and members.logits.requires_grad:
        at = torch.as_tensor(y, device=members.logits.device)
        with torch.no_grad():
            found = closed(aggregate, members, sets.flat, at)
        if found is not None:

            def again(logits: Tensor) -> Tensor:
                return evaluate(aggregate, map_parameters(members, lambda _: logits), sets, y)

            return call(_WithPosterior, members.logits, *found, sets.repeat, again)
    return evaluate(aggregate, members, sets, y)


class _WithPosterior(torch.autograd.Function):
    """log p(y) of sets, whose derivative in the members' log P(class) is P(class | y)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, each: Tensor, after: Tensor, repeat: Any, again: Any
    ) -> Tensor:
        ctx.save_for_backward(logits, after)
        ctx.repeat, ctx.again = repeat, again
        return each

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, after = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return ctx.repeat(grad).unsqueeze(1) * after, None, None, None, None
        with torch.enable_grad():  # to be differentiated again
            (at,) = torch.autograd.grad(ctx.again(logits), logits, grad, create_graph=True)
        return at, None, None, None, None


class _Checked(NamedTuple):
    """A y on a device that was found good for an aggregate, and the y that was given."""

    aggregate: Aggregate
    given: weakref.ref[Tensor]
    version: int  # of the tensor that was given: another one once its numbers change
    y: Tensor


HOSTS = ("cpu",)  # where y is checked without a copy
_CHECKED: weakref.WeakKeyDictionary[Sets, _Checked] = weakref.WeakKeyDictionary()


def _checked(aggregate: Aggregate, sets: Sets, y: Any) -> Any:
    """y after its checks; a tensor on a device as one that is there."""
    if not isinstance(y, Tensor) or y.device.type in HOSTS:
        return aggregate.check(sets, y)
    known = _CHECKED.get(sets)
    same = known is not None and known.aggregate is aggregate and known.given() is y
    if known is None or not same or known.version != y._version:
        good = torch.as_tensor(aggregate.check(sets, y.detach().cpu()), device=y.device)
        known = _CHECKED[sets] = _Checked(aggregate, weakref.ref(y), y._version, good)
    return known.y
