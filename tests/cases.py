"""Every (aggregate, family) pair that the registry knows, with examples to try it on."""

from __future__ import annotations

import numpy as np
import torch
from torch import distributions as td

import setwise as sw
from setwise.checks import examples as instances
from setwise.checks import noisy_examples as noisy
from setwise.distributions import families, parameters
from setwise.distributions.logistic import LogisticDistribution
from setwise.likelihood import Targets, aggregates, find_rule

MAKE = {
    "normal": lambda u: td.Normal(u(-1.5, 1.5), u(0.5, 1.6)),
    "cauchy": lambda u: td.Cauchy(u(-1.5, 1.5), u(0.5, 1.6)),
    "laplace": lambda u: td.Laplace(u(-1.5, 1.5), u(0.5, 1.6)),
    "logistic": lambda u: LogisticDistribution(u(-1.5, 1.5), u(0.5, 1.6)),
    "gumbel": lambda u: td.Gumbel(u(-1.5, 1.5), u(0.5, 1.6)),
    "studentt": lambda u: td.StudentT(u(2.5, 6.0), u(-1.5, 1.5), u(0.5, 1.6)),
    "exponential": lambda u: td.Exponential(u(0.5, 2.0)),
    "gamma": lambda u: td.Gamma(u(0.7, 4.0), u(0.5, 2.0)),
    "poisson": lambda u: td.Poisson(u(0.4, 4.0)),
    "negativebinomial": lambda u: td.NegativeBinomial(u(0.8, 4.0), logits=u(-2.0, -0.7)),
}
REPEATED = {"normal", "cauchy", "gumbel", "gamma", "negativebinomial", "exponential"}


def example(
    family: str, n: int, *, n_classes=4, seed=0, dtype=torch.float64, grad=False, same=False
):
    """A distribution over n rows with moderate random parameters.

    `same=True` shares the nuisance parameter (scale, rate, logits) as a fitted model with a shared
    scale would: one number, expanded.
    """
    rng = np.random.default_rng(seed)

    def u(low, high):
        return torch.tensor(rng.uniform(low, high, n), dtype=dtype, requires_grad=grad)

    if family == "categorical":
        logits = torch.tensor(rng.normal(0, 1.2, (n, n_classes)), dtype=dtype, requires_grad=grad)
        return td.Categorical(logits=logits), [logits]
    made = MAKE[family](u)
    values = parameters(made)
    if same:
        name = list(values)[-1]
        one = values[name][0].detach().clone().requires_grad_(grad)
        values = {**values, name: one.expand(n)}
        leaves = [*[v for k, v in values.items() if k != name], one]
        return type(made)(**values), leaves
    return made, list(values.values())


def known_pairs():
    """(aggregate class, family name) for every pair with a rule."""
    out = []
    for cls in aggregates():
        if not cls.__module__.startswith("setwise.") or cls.shares:
            continue  # aggregates that other tests define; test_effect.py
        for name, family in families().items():
            try:
                find_rule(cls, family.distribution)
            except TypeError:
                continue
            out.append((cls, name))
    return out


def trials(only_exact=False):
    """(id, aggregate, family) for every pair and every instance."""
    out = []
    for cls, family in known_pairs():
        found = noisy(family) if cls is sw.Noisy else instances(cls)
        rule = find_rule(cls, families()[family].distribution)
        if only_exact and cls is sw.Custom and not rule.exact:
            continue
        for i, aggregate in enumerate(found):
            inner = f"[{type(aggregate.aggregate).__name__}]" if cls is sw.Noisy else ""
            out.append((f"{cls.__name__}{inner}{i}-{family}", aggregate, family))
    return out


def members_of(sets, distribution, i, oracle):
    return [oracle.member_of(distribution, int(row)) for row in sets[i]]


def make_sets(aggregate, sizes=(1, 2, 3), n_rows=7, seed=1):
    """Sets of the sizes that the aggregate allows."""
    rng = np.random.default_rng(seed)
    takes = aggregate.set_sizes(Targets())
    sizes = tuple(min(max(s, takes.least), takes.most or 99) for s in sizes)
    return sw.Sets([rng.choice(n_rows, s, replace=False).tolist() for s in sizes])


def observe(aggregate, distribution, sets, seed=0):
    """A simulated observation; Ranking reorders the sets."""
    torch.manual_seed(seed)
    z = distribution.sample().detach()
    if isinstance(distribution, td.Poisson | td.NegativeBinomial | td.Categorical):
        z = z.long()
    return aggregate.observe(z, sets, seed=seed)
