"""Incomes of people from the means of their towns; ages are missing, some people listed twice."""

from sklearn.metrics import r2_score

import setwise as sw
from examples.jobs import worlds


def fit(people, means, learner="auto"):
    people = people.drop_duplicates("person")
    seen = sw.Observations.from_groups(
        sw.Mean(), people["town"], means.set_index("town")["income"], missing="drop"
    )
    model = sw.AggregateRegressor(learner=learner, random_state=0, verbose=0)
    return model.fit(people.drop(columns=["person", "town"]), seen)


if __name__ == "__main__":
    people, means, new, _, truth = worlds.towns()
    model = fit(people, means)
    print(f"R² of new people: {r2_score(truth, model.predict(new)):.2f}")
