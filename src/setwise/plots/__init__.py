"""Pictures of fitted models, drawn with matplotlib: `pip install 'setwise[plots]'`.

Every function draws on `ax`, or on a new figure, and returns the `Axes`.

>>> import numpy as np, setwise as sw
>>> from setwise import plots
>>> X = np.linspace(0, 1, 50)[:, None]
>>> means = sw.Mean().observe(X[:, 0], sw.Sets.random(50, 100, 4, seed=0))
>>> model = sw.AggregateRegressor(learner="linear", verbose=0).fit(X, means)
>>> ax = plots.fit(model, X, ax=plots.blank())
>>> ax.get_ylabel()
'target'
"""

from setwise.plots.features import importance
from setwise.plots.inline_svg import svg
from setwise.plots.rows import confusion, fit, posterior
from setwise.plots.sets import calibration, learning_curve
from setwise.plots.style import PALETTE, blank
from setwise.plots.told import identifiability

__all__ = [
    "PALETTE", "blank", "calibration", "confusion", "fit", "identifiability", "importance",
    "learning_curve", "posterior", "svg",
]  # fmt: skip
