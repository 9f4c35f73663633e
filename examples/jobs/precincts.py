"""Who votes for whom? Counts of each precinct, published with noise of a known size."""

import setwise as sw
from examples.jobs import worlds


def fit(voters, counts, sd, learner="auto"):
    aggregate = sw.Noisy(sw.Counts(), normal=sd)
    seen = sw.Observations.from_groups(aggregate, voters["precinct"], counts.set_index("precinct"))
    model = sw.AggregateClassifier(learner=learner, random_state=0, verbose=0)
    return model.fit(voters.drop(columns="precinct"), seen)


if __name__ == "__main__":
    voters, counts, sd, new, _, truth = worlds.precincts()
    model = fit(voters, counts, sd)
    print(f"new voters told right: {(model.predict(new) == truth).mean():.2f}")
