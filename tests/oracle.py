"""Slow, plain answers that share no code with the library: enumeration and quadrature in numpy.

`probability(aggregate, members, y)` gives p(y) for members that are scipy distributions (or class
probabilities). Discrete targets are enumerated; continuous ones integrated by the
double-exponential rule between the members' centres.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
from scipy import stats

from setwise.likelihood import Targets

SUPPORT = {"poisson": 36, "nbinom": 70}


class Member:
    """One member's target: pdf/pmf and cdf as plain numpy functions."""

    def __init__(self, frozen=None, probabilities=None):
        self.frozen, self.probabilities = frozen, probabilities
        self.discrete = probabilities is not None or frozen.dist.name in SUPPORT
        if probabilities is None and self.discrete:
            grid = np.arange(SUPPORT[frozen.dist.name])
            self.table = frozen.pmf(grid)
        elif self.discrete:
            self.table = np.asarray(probabilities)

    @np.errstate(all="ignore")  # far nodes overflow to a density of zero
    def pdf(self, x):
        if self.discrete:
            x = np.asarray(x)
            inside = (x >= 0) & (x < len(self.table)) & (x == np.floor(x))
            return np.where(inside, self.table[np.where(inside, x, 0).astype(int)], 0.0)
        values = self.frozen.pdf(x)
        return np.where(np.isfinite(values), values, 0.0)  # a node on the pole of a density

    @np.errstate(all="ignore")
    def cdf(self, x):
        return self.frozen.cdf(x)

    @np.errstate(all="ignore")
    def sf(self, x):
        return self.frozen.sf(x)

    @property
    def breaks(self):
        low = self.frozen.support()[0]
        centre, spread = self.frozen.median(), self.frozen.ppf(0.9) - self.frozen.median()
        points = [
            centre - 4 * spread,
            centre - spread,
            centre,
            centre + spread,
            centre + 4 * spread,
        ]
        if self.frozen.dist.name == "laplace":
            points.append(self.frozen.kwds.get("loc", self.frozen.median()))
        return [low, *[p for p in points if p > low]] if math.isfinite(low) else points


def member_of(distribution, row) -> Member:
    """The scipy twin of one row of a torch distribution."""
    d = distribution
    name = type(d).__name__

    def at(parameter):
        return float(parameter[row])

    if name == "Categorical":
        return Member(probabilities=d.probs[row].detach().double().numpy())
    twin = {
        "Normal": lambda: stats.norm(at(d.loc), at(d.scale)),
        "Cauchy": lambda: stats.cauchy(at(d.loc), at(d.scale)),
        "Laplace": lambda: stats.laplace(at(d.loc), at(d.scale)),
        "LogisticDistribution": lambda: stats.logistic(at(d.loc), at(d.scale)),
        "Gumbel": lambda: stats.gumbel_r(at(d.loc), at(d.scale)),
        "StudentT": lambda: stats.t(at(d.df), at(d.loc), at(d.scale)),
        "Exponential": lambda: stats.expon(scale=1 / at(d.rate)),
        "Gamma": lambda: stats.gamma(at(d.concentration), scale=1 / at(d.rate)),
        "Poisson": lambda: stats.poisson(at(d.rate)),
        "NegativeBinomial": lambda: stats.nbinom(at(d.total_count), 1 - at(d.probs)),
    }[name]
    return Member(twin())


def moved(member, u):
    """The member with its location, log mean or log odds (of each class but the first) moved."""
    if member.frozen is None:
        table = member.table * np.exp([0.0, *np.atleast_1d(u)])
        return Member(probabilities=table / table.sum())
    name, args, named = member.frozen.dist.name, [*member.frozen.args], {**member.frozen.kwds}
    if name in ("gamma", "poisson", "nbinom"):
        args[0] *= math.exp(u)
    elif name == "expon":
        named["scale"] *= math.exp(u)
    else:
        args[name == "t"] += u
    return Member(member.frozen.dist(*args, **named))


# ---- quadrature


@cache
def _double_exponential(kind):
    if kind == "finite":  # to (−1, 1)
        t = np.arange(-4.0, 4.0001, 1 / 12)
        x = np.tanh(np.pi / 2 * np.sinh(t))
        w = np.pi / 2 * np.cosh(t) / np.cosh(np.pi / 2 * np.sinh(t)) ** 2 / 12
    else:  # to (0, ∞)
        t = np.arange(-4.4, 4.4001, 1 / 12)
        x = np.exp(np.pi / 2 * np.sinh(t))
        w = np.pi / 2 * np.cosh(t) * x / 12
    return x, w


def nodes(points, low=-math.inf, high=math.inf):
    """Nodes and weights for ∫ over (low, high), split at the points inside."""
    inner = sorted({float(p) for p in points if low < p < high})
    ends = [low, *inner, high]
    xs, ws = [], []
    for a, b in itertools.pairwise(ends):
        if math.isfinite(a) and math.isfinite(b):
            x, w = _double_exponential("finite")
            xs.append((a + b) / 2 + (b - a) / 2 * x)
            ws.append((b - a) / 2 * w)
        else:
            x, w = _double_exponential("half")
            scale = max(1e-3, (inner[-1] - inner[0]) / 4) if len(inner) > 1 else 1.0
            xs.append(b - scale * x if math.isfinite(b) else a + scale * x)
            ws.append(scale * w)
    return np.concatenate(xs), np.concatenate(ws)


def integrate(f, points, low=-math.inf, high=math.inf):
    x, w = nodes(points, low, high)
    values = f(x)
    return float((np.where(w > 0, values, 0.0) * w).sum())


# ---- continuous targets


def _sum_density(members, weights, y):
    scaled = [Scaled(m, w) for m, w in zip(members, weights, strict=True)]
    return _convolve(scaled, y)


class Scaled:
    """w·Z as a member."""

    def __init__(self, member, w):
        self.member, self.w = member, w

    def pdf(self, x):
        return self.member.pdf(x / self.w) / abs(self.w)

    @property
    def breaks(self):
        return [self.w * b for b in self.member.breaks]


def _convolve(parts, y):
    if len(parts) == 1:
        return float(parts[0].pdf(np.float64(y)))
    if len(parts) == 2:
        a, b = parts
        points = [*a.breaks, *(y - np.array(b.breaks))]
        return integrate(lambda x: a.pdf(x) * b.pdf(y - x), points)
    head, rest = parts[0], parts[1:]
    spread = np.array(rest[0].breaks)
    for part in rest[1:]:
        spread = (spread[:, None] + np.array(part.breaks)[None, :]).ravel()
    centre = [np.quantile(spread, q) for q in (0.0, 0.25, 0.5, 0.75, 1.0)]
    x, w = nodes([*head.breaks, *(y - np.array(centre))])
    outer = head.pdf(x)
    keep = outer * w > 1e-16 * (outer * w).max()
    inner = np.array([_convolve(rest, y - xi) for xi in x[keep]])
    return float((outer[keep] * w[keep] * inner).sum())


def _below(members, x):
    return np.array([m.cdf(x) for m in members])


def _above(members, x):
    return np.array([m.sf(x) for m in members])


def _order_density(members, k, y):
    total, n = 0.0, len(members)
    f = [float(m.pdf(np.float64(y))) for m in members]
    low, high = _below(members, y), _above(members, y)
    for j in range(n):
        rest = [i for i in range(n) if i != j]
        for below in itertools.combinations(rest, k - 1):
            product = f[j]
            for i in rest:
                product *= low[i] if i in below else high[i]
            total += product
    return total


def _median_density(members, y):
    n = len(members)
    if n % 2:
        return _order_density(members, (n + 1) // 2, y)
    half = n // 2

    def joint(t):
        f_lo = [m.pdf(y - t) for m in members]
        f_hi = [m.pdf(y + t) for m in members]
        low, high = _below(members, y - t), _above(members, y + t)
        total = 0.0
        for i, j in itertools.permutations(range(n), 2):
            rest = [r for r in range(n) if r not in (i, j)]
            for below in itertools.combinations(rest, half - 1):
                product = f_lo[i] * f_hi[j]
                for r in rest:
                    product = product * (low[r] if r in below else high[r])
                total = total + product
        return 2 * total

    points = {abs(b - y) for m in members for b in m.breaks}
    return integrate(joint, [p for p in points if p > 0], low=0.0)


def _ranking(members):
    """P(z₁ > z₂ > …) by nested integrals."""
    breaks = sorted(b for m in members for b in m.breaks)

    def chain(level, upper):
        if level == len(members) - 1:
            return members[level].cdf(upper)
        out = np.empty_like(upper)
        for i, u in enumerate(upper):
            x, w = nodes(breaks, high=u)
            out[i] = (members[level].pdf(x) * chain(level + 1, x) * w).sum()
        return out

    x, w = nodes(breaks)
    f = members[0].pdf(x) * w
    keep = f > 1e-25
    return float((f[keep] * chain(1, x[keep])).sum())


def _ranking_with_ties(members, top, y):
    """The sum over all orders that agree with what was seen."""
    n, total = len(members), 0.0
    if n == 1:
        return 1.0
    level = list(range(n)) if y is None else [v for v in y if v == v]
    for order in itertools.permutations(range(n)):
        better = [sum(other < level[k] for other in level) for k in range(n)]
        seen = [min(better[k], n if top is None else top) for k in order]
        if seen == sorted(seen):
            total += _ranking([members[k] for k in order])
    return total


def _two_teams(aggregate, members, y):
    """Which of two teams of three members in all has the larger sum, by two nested integrals."""
    one, two, last = members
    a, b, c = np.repeat([1.0, -1.0], aggregate.sizes)
    # z₃ in the larger team exceeds what is missing, in the smaller one stays below what is ahead
    beyond = last.sf if c > 0 else lambda t: last.cdf(-t)

    def exceeds(edge):
        def at(x):
            points = [*two.breaks, *(b * (edge - a * x - c * np.array(last.breaks)))]
            return integrate(lambda u: two.pdf(u) * beyond(edge - a * x - b * u), points)

        x, w = nodes(one.breaks)
        mass = one.pdf(x) * w
        keep = mass > 1e-16
        return float(mass[keep] @ np.array([at(value) for value in x[keep]]))

    m = aggregate.aggregate.tie_margin
    if y == 1:
        return exceeds(m)
    return 1 - exceeds(-m) if y == 0 else exceeds(-m) - exceeds(m)


def continuous(aggregate, members, y, weights=None):
    name = type(aggregate).__name__
    weights = [1.0] * len(members) if weights is None else weights
    points = [b for m in members for b in m.breaks]
    if name == "Direct":
        return float(members[0].pdf(np.float64(y)))
    if name == "PrimaryInstance":
        return float(np.mean([m.pdf(np.float64(y)) for m in members]))
    if name == "Interval":
        return float(members[0].cdf(y[1]) - members[0].cdf(y[0]))
    if name == "Sum":
        return _sum_density(members, weights, y)
    if name == "Mean":
        return _sum_density(members, np.array(weights) / np.sum(weights), y)
    if name == "Difference":
        return _sum_density(members, [1.0, -1.0], y)
    if name == "Rank":
        a, b = members
        m = aggregate.tie_margin
        points = [*a.breaks, *(np.array(b.breaks) + m), *(np.array(b.breaks) - m)]
        if y == 1:
            return integrate(lambda x: a.pdf(x) * b.cdf(x - m), points)
        if y == 0:
            return integrate(lambda x: a.pdf(x) * b.sf(x + m), points)
        return integrate(lambda x: a.pdf(x) * (b.cdf(x + m) - b.cdf(x - m)), points)
    if name == "Ranking":
        return _ranking_with_ties(members, aggregate.top, y)
    if name == "Teams":
        return _two_teams(aggregate, members, y)
    if name == "Choice":
        j = int(y)
        rest = [m for i, m in enumerate(members) if i != j]
        return integrate(
            lambda x: members[j].pdf(x) * np.prod([m.cdf(x) for m in rest], axis=0), points
        )
    if name == "Min":
        return _order_density(members, 1, y)
    if name == "Max":
        return _order_density(members, len(members), y)
    if name == "OrderStatistic":
        return _order_density(members, aggregate.k, y)
    if name == "Median":
        return _median_density(members, y)
    if name == "Uncoupled":
        values = np.asarray(y)[~np.isnan(y)]
        table = np.array([m.pdf(values) for m in members])
        orders = itertools.permutations(range(len(members)))
        terms = [math.prod(table[i, o] for i, o in enumerate(order)) for order in orders]
        return math.fsum(terms) / math.factorial(len(members))
    raise NotImplementedError(f"tests/oracle.py has no continuous oracle for {name}: write one")


# ---- discrete targets: P(y | z) for every tuple z


def given(aggregate, z, y, n_classes):
    """P(y | z) for each line of z; an independent reading of every aggregate."""
    name = type(aggregate).__name__
    if name == "Direct":
        return z[:, 0] == y
    if name == "PrimaryInstance":
        return (z == y).mean(1)
    if name == "Interval":
        return (z[:, 0] >= y[0]) & (z[:, 0] <= y[1])
    if name == "Sum":
        return z.sum(1) == round(y)
    if name == "Mean":
        return np.isclose(z.mean(1), y, atol=1e-9)
    if name == "Difference":
        return z[:, 0] - z[:, 1] == y
    if name == "Rank":
        gap = z[:, 0] - z[:, 1]
        m = aggregate.tie_margin
        return {1.0: gap > m, 0.0: gap < -m, 0.5: np.abs(gap) <= m}[float(y)]
    if name == "Min":
        return z.min(1) == y
    if name == "Max":
        return z.max(1) == y
    if name == "OrderStatistic":
        return np.sort(z, 1)[:, aggregate.k - 1] == y
    if name == "Median":
        return np.median(z, 1) == y
    if name == "Uncoupled":
        values = np.asarray(y)[~np.isnan(y)]
        orders = list(itertools.permutations(range(z.shape[1])))
        return np.mean([(z[:, list(o)] == values).all(1) for o in orders], axis=0)
    if name == "Similarity":
        return (z[:, 0] == z[:, 1]) == (y == 1)
    if name == "Triplet":
        d = aggregate.distance
        d = 1 - np.eye(n_classes) if d is None else np.asarray(d)
        a, b = d[z[:, 0], z[:, 1]], d[z[:, 0], z[:, 2]]
        return np.sign(b - a) == y if aggregate.three_way else (a < b) == (y == 1)
    if name == "AnyPositive":
        return (z == aggregate.positive).any(1) == (y == 1)
    if name in ("Counts", "Proportions"):
        counts = np.stack([(z == c).sum(1) for c in range(n_classes)], 1)
        y = np.asarray(y, float) * (z.shape[1] if name == "Proportions" else 1)
        return counts[:, 1] == np.round(y) if y.ndim == 0 else (counts == np.round(y)).all(1)
    if name == "Presence":
        present = np.stack([(z == c).any(1) for c in range(n_classes)], 1)
        return (present == (np.asarray(y) == 1)).all(1)
    if name == "Coarse":
        holds = np.array([[c in cell for c in range(n_classes)] for cell in aggregate.cells])
        return (holds / holds.sum(0))[int(y), z[:, 0]]
    if name == "Fold":
        state = np.full(len(z), aggregate.start)
        for k in range(z.shape[1]):
            state = np.asarray(aggregate.step)[state, z[:, k]]
        return np.asarray(aggregate.output)[state] == y
    if name == "Custom":
        import torch

        return np.array([float(aggregate.fn(torch.tensor(line))) for line in z]) == y
    raise NotImplementedError(f"tests/oracle.py has no discrete oracle for {name}: write one")


def tuples(members):
    """All tuples of targets and their probabilities."""
    grids = np.meshgrid(*[np.arange(len(m.table)) for m in members], indexing="ij")
    z = np.stack([g.ravel() for g in grids], 1)
    p = np.ones(len(z))
    for k, m in enumerate(members):
        p = p * m.table[z[:, k]]
    return z, p


def discrete(aggregate, members, y):
    z, p = tuples(members)
    return float((p * given(aggregate, z, y, len(members[0].table))).sum())


def probability(aggregate, members, y, weights=None):
    """p(y) for a set of these members."""
    if type(aggregate).__name__ == "Noisy":
        return _noisy(aggregate, members, y, weights)
    if type(aggregate).__name__ == "RandomEffect":
        return _alike(aggregate, members, y, weights)
    if members[0].discrete:
        return discrete(aggregate, members, y)
    return continuous(aggregate, members, y, weights)


def _alike(aggregate, members, y, weights):
    """The mean over what members share, by the trapezoidal rule."""
    s, inner = aggregate.scale, aggregate.aggregate
    few = members[0].frozen is None and len(members[0].table) > 2
    x = np.linspace(-8, 8, 49 if few else 129)
    w = np.exp(-(x**2) / 2)
    if not few:
        each = [probability(inner, [moved(m, s * u) for m in members], y, weights) for u in x]
        return float((w * each).sum() / w.sum())
    total = 0.0  # three classes: the log odds of any two of them have this standard deviation
    for a, wa in zip(x, w, strict=True):
        for b, wb in zip(x, w, strict=True):
            u = s * np.array([a, 0.5 * a + math.sqrt(0.75) * b])
            total += wa * wb * probability(inner, [moved(m, u) for m in members], y, weights)
    return float(total / w.sum() ** 2)


def _noisy(aggregate, members, y, weights):
    inner = aggregate.aggregate
    is_discrete = members[0].discrete
    if aggregate.flip is not None:
        targets = Targets(len(members[0].table) if is_discrete else None, is_discrete)
        outcomes = inner.outcome(targets, len(members)).values
        clean = {v: probability(inner, members, v, weights) for v in outcomes}
        if len(outcomes) == 1:
            return clean[y]
        other = sum(p for v, p in clean.items() if v != y)
        return (1 - aggregate.flip) * clean[y] + aggregate.flip / (len(outcomes) - 1) * other
    if aggregate.normal is not None:
        noise = Member(stats.norm(0, aggregate.normal))
    else:
        noise = Member(stats.laplace(0, aggregate.laplace))
    if not is_discrete:
        weights = np.ones(len(members)) if weights is None else np.asarray(weights)
        if type(inner).__name__ == "Mean":
            weights = weights / weights.sum()
        parts = [Scaled(m, w) for m, w in zip(members, weights, strict=True)]
        return _convolve([noise, *parts], y)
    z, p = tuples(members)
    n_classes = len(members[0].table)
    name = type(inner).__name__
    if name == "Direct":
        value = z[:, :1]
    elif name in ("Sum", "Mean"):
        value = getattr(z, name.lower())(1)[:, None]
    else:
        value = np.stack([(z == c).sum(1) for c in range(n_classes)], 1)
        value = value / z.shape[1] if name == "Proportions" else value
        value = value[:, 1:2] if np.ndim(y) == 0 else value
    return float((p * noise.pdf(np.atleast_1d(y) - value).prod(1)).sum())
