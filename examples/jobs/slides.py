"""Which slides are malignant? Known is only which patients are ill: "yes" or "no"."""

import setwise as sw
from examples.jobs import worlds


def fit(slides, patients, learner="auto"):
    seen = sw.Observations.from_groups(
        sw.AnyPositive(), slides["patient"], patients.set_index("patient")["ill"]
    )
    classes = ["benign", "malignant"]
    model = sw.AggregateClassifier(classes, learner=learner, random_state=0, verbose=0)
    return model.fit(slides.drop(columns=["slide", "patient"]), seen)


if __name__ == "__main__":
    slides, patients, new, _, truth = worlds.slides()
    model = fit(slides, patients)
    print(f"new slides told right: {(model.predict(new) == truth).mean():.2f}")
