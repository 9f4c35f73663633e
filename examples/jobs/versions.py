"""Which page do visitors prefer? Winners of pairs by their ids, with ties."""

import setwise as sw
from examples.jobs import worlds


def fit(pages, votes, learner="auto"):
    seen = sw.Observations.from_ids(
        sw.Rank(tie_margin=0.4), votes[["A", "B"]], pages["page"], votes["winner"], missing="drop"
    )
    model = sw.AggregateRegressor(learner=learner, random_state=0, verbose=0)
    return model.fit(pages.drop(columns="page"), seen)


if __name__ == "__main__":
    pages, votes, new, _, truth = worlds.versions()
    model = fit(pages, votes)
    right = sw.metrics.concordance(truth, model.predict(new))
    print(f"pairs of new pages in the right order: {right:.2f}")
