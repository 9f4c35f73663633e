"""The tables that the six jobs begin with, and the truth that their models never see.

Each function gives what its job reads, then the table of new rows, and the truth of the rows that
are learned from and of the new ones. `python -m examples.jobs.worlds` writes those of slides.py to
files, for the command line.
"""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_wine

JOBS = {"clerk": 20.0, "doctor": 45.0, "farmer": 15.0, "teacher": 25.0}


def towns() -> tuple[Any, ...]:
    """People with gaps, people listed twice, towns listed twice and a town that nobody lives in."""
    rng = np.random.default_rng(0)
    n = 3000
    people = pd.DataFrame(
        {
            "person": [f"p{i}" for i in range(n)],
            "town": [f"town {i}" for i in rng.integers(0, 400, n)],
            "age": rng.integers(20, 66, n).astype(float),
            "job": rng.choice(list(JOBS), n),
            "owner": rng.random(n) < 0.4,
            "since": np.datetime64("2000-01-01") + rng.integers(0, 9000, n).astype("m8[D]"),
        }
    )
    experience = 12 * np.sin(np.pi * (people["age"] - 20) / 50)
    income = people["job"].map(JOBS) + experience + 6 * people["owner"] + rng.normal(0, 4, n)
    people["income"] = income
    new = people[2000:].drop(columns=["person", "town", "income"])
    people = people[:2000].copy()
    means = people.groupby("town", as_index=False)["income"].mean()
    people.loc[rng.random(2000) < 0.05, "age"] = np.nan
    people.loc[rng.random(2000) < 0.03, "town"] = None
    people = pd.concat([people, people[:40]], ignore_index=True)  # 40 people are there twice
    empty = pd.DataFrame({"town": ["Atlantis"], "income": [99.0]})
    means = pd.concat([means, means[:20], empty], ignore_index=True)
    return (people.drop(columns="income"), means, new, people["income"], income[2000:])


def versions() -> tuple[Any, ...]:
    """Versions of a page, and what visitors preferred of two: "A", "B" or "tie"."""
    rng = np.random.default_rng(1)
    names = ["words", "pictures", "prices", "links", "contrast"]
    features = rng.normal(size=(600, 5))
    appeal = features @ [1.0, 0.8, -0.6, 0.3, 0.0] + 0.5 * features[:, 0] * features[:, 1]
    pages = pd.DataFrame(features, columns=names)
    pages.insert(0, "page", [f"v-{i:03}" for i in rng.permutation(600)])
    pairs = np.array([rng.choice(400, 2, replace=False) for _ in range(3000)])
    gap = np.diff(appeal[pairs][:, ::-1], axis=1)[:, 0] + rng.normal(0, 1, 3000)
    shown = pages["page"].to_numpy()[pairs]
    votes = pd.DataFrame(shown, columns=["A", "B"])
    votes["winner"] = np.select([gap > 0.4, gap < -0.4], ["A", "B"], "tie")
    votes.loc[rng.random(3000) < 0.02, "B"] = "v-999"  # a page that is no longer there
    return (pages[:400], votes, pages[400:].drop(columns="page"), appeal[:400], appeal[400:])


def slides() -> tuple[Any, ...]:
    """Real biopsies (Wolberg, Street and Mangasarian 1993), dealt to patients who are ill or not.

    A patient is ill if one of up to four samples is malignant.
    """
    rng = np.random.default_rng(2)
    data = load_breast_cancer(as_frame=True)
    order = rng.permutation(len(data.data))
    table = data.data.iloc[order].reset_index(drop=True)
    malignant = data.target.to_numpy()[order] == 0
    table.insert(0, "slide", [f"s{i}" for i in range(len(table))])
    known = table[:400].copy()
    known.insert(1, "patient", [f"patient {i}" for i in np.sort(rng.integers(0, 170, 400))])
    ill = known.assign(z=malignant[:400]).groupby("patient")["z"].max()
    patients = ill.map({True: "yes", False: "no"}).rename("ill").reset_index()
    patients = patients.sample(frac=1, random_state=0)
    found = np.where(malignant, "malignant", "benign")
    return (known, patients, table[400:].drop(columns="slide"), found[:400], found[400:])


def precincts() -> tuple[Any, ...]:
    """Voters by precinct, and how many of them voted for whom, with noise for privacy."""
    rng = np.random.default_rng(3)
    n, sd = 4000, 1.0
    voters = pd.DataFrame(
        {
            "precinct": rng.integers(0, 600, n),
            "age": rng.integers(18, 90, n),
            "region": rng.choice(["north", "south", "coast"], n),
            "degree": rng.random(n) < 0.35,
        }
    )
    shift = voters["region"].map({"north": -1.0, "south": 1.2, "coast": 0.0})
    logit = shift + 0.06 * (voters["age"] - 50) - 2.0 * voters["degree"]
    party = np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), "red", "blue")
    known = voters[:3000]
    counts = pd.crosstab(known["precinct"], party[:3000])[["blue", "red"]].astype(float)
    noisy = (counts + rng.normal(0, sd, counts.shape)).reset_index()
    return (known, noisy, sd, voters[3000:].drop(columns="precinct"), party[:3000], party[3000:])


def wines() -> tuple[Any, ...]:
    """Real wines of three growers (Aeberhard and Forina 1991), and tasters wrong in one of ten."""
    rng = np.random.default_rng(4)
    data = load_wine(as_frame=True)
    order = rng.permutation(len(data.data))
    table = data.data.iloc[order].reset_index(drop=True)
    table.insert(0, "bottle", [f"b{i}" for i in order])
    grower = data.target.to_numpy()[order]
    pairs = np.array([rng.choice(120, 2, replace=False) for _ in range(1500)])
    same = (grower[pairs[:, 0]] == grower[pairs[:, 1]]) ^ (rng.random(1500) < 0.1)
    bottles = table["bottle"].to_numpy()[pairs]
    tastings = pd.DataFrame(bottles, columns=["first", "second"])
    tastings["answer"] = np.where(same, "same", "different")
    return (table[:120], tastings, table[120:].drop(columns="bottle"), grower[:120], grower[120:])


def shops() -> tuple[Any, ...]:
    """Baskets: how often each of 30 articles was bought, mostly never, and the sums of a day."""
    rng = np.random.default_rng(5)
    n = 4000
    articles = (rng.random((n, 30)) < 0.15) * rng.integers(1, 4, (n, 30))
    prices = rng.gamma(2.0, 5.0, 30)
    paid = articles @ prices + rng.normal(0, 5, n)
    table = {f"article {j}": articles[:, j].astype(float) for j in range(30)}
    day = rng.integers(0, 300, n)[:3000]
    sums = {f"day {d}": float(paid[:3000][day == d].sum()) for d in np.unique(day)}
    some, new = ({k: v[part] for k, v in table.items()} for part in (slice(3000), slice(3000, n)))
    return some, [f"day {d}" for d in day], sums, new, paid[:3000], paid[3000:]


if __name__ == "__main__":
    known, patients, new, _, truth = slides()
    known.to_csv("slides.csv", index=False)
    patients.to_csv("patients.csv", index=False)
    new.assign(found=truth).to_csv("new.csv", index=False)
