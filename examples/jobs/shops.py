"""What is in a basket worth? Takings of days; rows in polars, pyarrow or a sparse matrix."""

import polars as pl
import pyarrow as pa
from scipy import sparse
from sklearn.metrics import r2_score

import setwise as sw
from examples.jobs import worlds


def fit(baskets, days, takings, learner="linear"):
    seen = sw.Observations.from_groups(sw.Sum(), days, takings)
    model = sw.AggregateRegressor(learner=learner, random_state=0, verbose=0)
    return model.fit(baskets, seen)


if __name__ == "__main__":
    baskets, days, takings, new, _, truth = worlds.shops()
    for form in (pl.DataFrame, pa.table, lambda table: sparse.csr_matrix(pl.DataFrame(table))):
        model = fit(form(baskets), days, takings)
        print(f"R² of new baskets: {r2_score(truth, model.predict(form(new))):.2f}")
