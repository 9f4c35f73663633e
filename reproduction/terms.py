"""What the words of the report mean: what was seen, by which method, and how it is judged."""

from __future__ import annotations

from collections.abc import Iterable

from reproduction.blocks import Cell, Grid, Section

__all__ = ["terms"]

# The beginning of a method's name, and what it is.
METHODS = {
    "similarity_mle": "from pairs, whether two items are of one class, by the likelihood of that",
    "triplet_mle": "from triplets, whether the first item is of the class of the second and not of "
    "the third, by the likelihood of that; `_three_way` also sees which answers are open",
    "mean_mle": "from the means of small groups, by their likelihood",
    "lr_k": "from means of so many, by their likelihood, with a linear model",
    "gbm_k": "from means of so many, by their likelihood, with boosted trees",
    "rank_gaussian": "from ranks, which of two targets is larger, by their likelihood if targets "
    "are normal; only the order of targets can be learned, so the error's variance is judged",
    "rank_gumbel": "from ranks, by their likelihood if targets are Gumbel (Bradley and Terry)",
    "mean_baseline": "naive: every member gets the mean of its group as its own label",
    "kmeans": "clusters of the features; no label is seen",
    "siamese": "a network that tells from two embeddings whether they are of one class",
    "contrastive": "embeddings of alike pairs are drawn together, others apart; then clusters",
    "tuplet": "embeddings from triplets by the loss of tuplets; then clusters",
    "triplet_loss": "embeddings from triplets by the triplet loss; then clusters",
    "triplet": "embeddings from triplets by the triplet loss; then clusters",
    "supervised": "full supervision: the label of every individual is seen",
}
ENDS = {
    "_lr": "a linear model",
    "_gbm": "boosted trees",
    "_either": "network or boosted trees, whichever held-out sets prefer",
}
WORDS = [
    ("cell", "one method on one data set; a figure is the mean over trials ± standard deviation"),
    ("trial", "another random split and other random sets of the same data"),
    ("`protocol`", "the paper's model and budget of steps, with this library's likelihoods"),
    ("`best`", "whatever the project knows to do with the same labels"),
    (
        "ahead, level, behind",
        "better or worse than the paper's figure by more than one standard error, or neither",
    ),
    ("accuracy", "share of new individuals in the right class, after the best renaming of classes"),
]


def terms(methods: Iterable[str]) -> Section:
    """The section for a report of these methods."""
    found = [*dict.fromkeys(methods)]
    rows: list[list[str | Cell]] = [[word, said] for word, said in WORDS]
    taken: set[str] = set()
    for name, said in METHODS.items():
        mine = {m for m in found if m.startswith(name)} - taken
        if mine:
            taken |= mine
            rows.append([f"`{name}{'…' if mine != {name} else ''}`", said])
    rows += [
        [f"`…{end}`", said] for end, said in ENDS.items() if any(m.endswith(end) for m in found)
    ]
    words = (
        "Individuals have targets that were not shown; what was shown are labels of **sets** of "
        "them. A method learns from these and is judged on new individuals with known targets."
    )
    return "The words of this page", [words, Grid(["word", "meaning"], rows)]
