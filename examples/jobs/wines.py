"""Which wines are of one grower? Tasters say "same" or "different", and one in ten is wrong."""

import setwise as sw
from examples.jobs import worlds


def fit(bottles, tastings, learner="auto"):
    pairs, answers = tastings[["first", "second"]], tastings["answer"]
    aggregate = sw.Noisy(sw.Similarity(), flip="learned")
    seen = sw.Observations.from_ids(aggregate, pairs, bottles["bottle"], answers)
    model = sw.AggregateClassifier(3, learner=learner, random_state=0, verbose=0)
    return model.fit(bottles.drop(columns="bottle"), seen)


if __name__ == "__main__":
    bottles, tastings, new, _, truth = worlds.wines()
    model = fit(bottles, tastings)
    right = sw.metrics.permutation_accuracy(truth, model.predict(new))
    print(f"new wines told right, growers aside from their names: {right:.2f}")
