"""Small problems to learn."""

from sklearn.datasets import make_friedman1

import setwise as sw
from setwise.learners.base import Task
from setwise.objective import Objective


def make_task(X, observations, family=None, free=True, **more):
    """A task as the estimators make it."""
    listed = observations if isinstance(observations, list) else [observations]
    objective = Objective(family or sw.Normal(), listed, X.shape[0])
    raw, shared = objective.start(free)
    return Task(X, objective, raw, shared, free=free, **more)


def friedman(n=2000, size=4, n_sets=2000, seed=0, aggregate=None):
    """Friedman's first function with noise of variance 1, and an observation of random sets."""
    X, z = make_friedman1(n, noise=1.0, random_state=seed)
    aggregate = aggregate or sw.Mean()
    sets = sw.Sets.random(n, n_sets, size, replace=False, seed=seed)
    return X, z, aggregate.observe(z, sets, seed=seed)
