"""What `setwise fit` does: it reads the data, trains, and judges the model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from setwise._subclasses import spelled
from setwise.cli.columns import Columns, choose_columns, some_rows
from setwise.cli.common import Failure, Mistake
from setwise.cli.config import FitSpec
from setwise.cli.files import in_parts
from setwise.cli.membership import Block, in_options, observe, prepare
from setwise.cli.names import family, learner
from setwise.cli.stored import StoredTable, read_stored, stored_columns
from setwise.cli.tables import Table, read
from setwise.frames import Encoded

__all__ = ["Fitting"]

DIGITS = 9  # of a number of classes


class Fitting:
    """The data of one fit, and its training."""

    def __init__(self, spec: FitSpec) -> None:
        assert spec.rows is not None
        self.spec = spec
        groups = [name for s in spec.sets for name in s.group]
        others = {*groups, *([spec.id] if spec.id else [])}
        self.stored = bool(spec.memory) or in_parts(spec.rows)
        self.rows = read_stored(spec) if self.stored else read(spec.rows, [*others], spec.missing)
        for name in others:
            self.rows.known(name)
        if spec.set and spelled(spec.learner) == "auto":
            raise Mistake(
                "--set is for a learner that you name, as in --learner lightgbm --set "
                "n_estimators=300"
            )
        if not 0 <= spec.seed < 2**32:
            raise Mistake(f"--seed is a whole number from 0 to {2**32 - 1}")
        for word in {"drop", "error"} & {*spec.missing}:
            raise Mistake(
                f"--missing names texts that mean a missing value; what to do about rows and sets "
                f"that match nothing is --on-missing {word}"
            )
        if spec.on_missing not in ("", "drop", "error"):
            raise Mistake(f"--on-missing is drop or error, got {spec.on_missing}")
        self.learner = learner(spec.learner, spec.set)
        self.n_classes, names = _classes(spec)
        prepared = [(s, *prepare(s, spec.missing)) for s in spec.sets]
        self.blocks: list[Block] = [
            observe(s, made, table, self.rows, spec.id, names, spec.on_missing)
            for s, made, table in prepared
        ]
        self.labels = self._labels()
        self.family: Any = family(spec.family or "normal") if self.labels is None else None
        self._check_rules()
        self.X, self.left_out = _columns(self.rows, spec, others)
        self.train_sets, self.held_out, self.dropped, self.apart = self._split()

    def _labels(self) -> list[Any] | None:
        """The class labels, where observations are about classes."""
        from setwise.checks.examples import has_rule
        from setwise.distributions import Categorical, Normal
        from setwise.likelihood.classes import class_labels

        about = [
            block
            for block in self.blocks
            if block.observations.classes is not None
            or not has_rule(type(block.observations.aggregate.bare), Normal)
        ]
        about = [b for b in about if has_rule(type(b.observations.aggregate.bare), Categorical)]
        if not about and self.n_classes is None:
            return None
        if self.spec.family:
            raise Mistake("--family is about numbers, but these labels are about classes")
        try:
            found: list[Any] = class_labels(self.n_classes, self.observations).tolist()
        except (ValueError, TypeError) as error:
            where = (about or self.blocks)[0].spec.file
            raise Mistake(f"{where}: {in_options(str(error))}") from None
        return found

    def _check_rules(self) -> None:
        from setwise.checks.examples import has_rule
        from setwise.distributions import Categorical

        family = Categorical if self.family is None else type(self.family)
        for block in self.blocks:
            cls = type(block.observations.aggregate)
            if not has_rule(cls, family):
                raise Mistake(
                    f"{block.spec.file}: {cls.__name__} is not known for targets of the family "
                    f"{family.__name__}; `setwise kinds {cls.__name__}` lists what is"
                )

    def _split(self) -> tuple[list[Any], list[Any], int, str]:
        """Observations to learn from and to hold out, how many in neither, and what is apart."""
        from setwise.validation import divided

        every = self.observations
        n = sum(map(len, every))
        folds = round(1 / self.spec.eval) if self.spec.eval > 0 else 0
        if folds < 2 or n < 2 * folds or self.stored:  # of files, the fit holds out what fits
            return every, [], 0, "nothing"
        found, apart, dropped = divided(self.X, every, folds, self.spec.seed)
        train, test = found[0]
        return train, test, dropped[0], apart

    def columns(self) -> Columns:
        """What is to be kept beside the model."""
        some: list[int] = []
        if isinstance(self.X, Encoded):
            used = np.unique(np.concatenate([o.sets.indices for o in self.observations]))
            some = some_rows(self.rows, self.spec.id, self.X, used)
        return Columns(self.spec.id or None, list(self.spec.missing), some)

    @property
    def missing_values(self) -> int:
        """Features without a value."""
        if self.stored:
            return int(sum(self.X.missing.values()))
        return int(sum(self.rows.column(c.name).null_count for c in self.X.encoder.columns))

    @property
    def observations(self) -> list[Any]:
        """The observations of all files."""
        return [block.observations for block in self.blocks]

    # ---- training

    def train(self, verbose: int) -> tuple[Any, list[str]]:
        """The fitted estimator, and the warnings of the fit."""
        import setwise as sw

        common = {"learner": self.learner, "random_state": self.spec.seed, "verbose": verbose}
        if self.stored and not self.spec.eval:
            common["validation"] = None
        if self.labels is None:
            est: Any = sw.AggregateRegressor(self.family, **common)
        else:
            numbered = self.labels == [*range(len(self.labels))]
            est = sw.AggregateClassifier(len(self.labels) if numbered else self.labels, **common)
        held_out = (self.X, self.held_out) if self.held_out else None
        return est, self._watched(est, lambda: est.fit(self.X, self.train_sets, eval=held_out))

    def train_on_all(self, est: Any) -> tuple[Any, list[str]]:
        """The estimator fitted again to all sets, those held out among them; and the warnings.

        It is the first estimator, with a note, where the last fit has no better likelihood.
        """
        if not self.held_out or est.interrupted_:
            return est, []
        every = self.observations
        new = copy.copy(est)
        notes = self._watched(new, lambda: new.refit(self.X, every))
        if new.interrupted_:
            est.interrupted_ = True
            return est, ["the last fit to all sets was interrupted: the model has not seen those "
                         "that were held out"]  # fmt: skip
        if new.score(self.X, every, profile=True) >= est.score(self.X, every, profile=True):
            return new, notes
        return est, ["a last fit to all sets came out worse: the model has not seen those held out"]

    def _watched(self, est: Any, learn: Callable[[], Any]) -> list[str]:
        """The warnings of a fit; its errors are raised as errors of the command line."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                learn()
            except (ValueError, TypeError) as error:
                raise self._located(est, error) from None
            except (ImportError, RuntimeError, MemoryError, OSError) as error:
                raise Failure(f"training failed: {error}") from None
            except Exception as error:
                if type(error).__module__.split(".")[0] not in ("lightgbm", "xgboost", "_catboost"):
                    raise
                few = " (with few rows, try --learner linear)" if len(self.rows) < 1000 else ""
                raise Failure(f"training failed: {error}{few}") from None
        notes = [str(w.message) for w in seen if issubclass(w.category, UserWarning)]
        return list(dict.fromkeys(notes))

    def _located(self, est: Any, error: Exception) -> Mistake:
        """The error, with its place in a file where a label is at fault."""
        from setwise.distributions import Categorical

        family = Categorical(len(self.labels)) if self.labels else self.family
        for block in self.blocks:
            try:
                labels = None if self.labels is None else est.classes_
                est._objective(family, self.X, block.observations, "sets", labels).start()
            except (ValueError, TypeError) as again:
                return block.explain(again)
        return Mistake(in_options(str(error)))

    def judge(self, est: Any) -> dict[str, Any]:
        """Likelihoods of the sets, and what labels of their kind and these very sets identify."""
        from setwise.summary.verdict import guesses, verdict

        scores = {}
        if self.stored:
            return self._as_fitted(est)
        for name, some in (("train", self.train_sets), ("held_out", self.held_out)):
            if some:
                scores[name] = est.score(self.X, some, profile=True)
                scores[f"{name}_constant"] = est.score_constant(self.X, some)
        best = est.leaderboard_[0] if self.held_out and est.leaderboard_ else None
        n = sum(map(len, self.held_out))
        return {
            "log_likelihood": scores,
            "verdict": verdict(best["gain"], best["gain_error"], n) if best else "",
            "guesses": [g._asdict() for g in guesses(est, self.X, self.held_out)],
            "steps": est.steps_ or len(est.history_),
            "identifiability": est.identifiability_.facts(),
            "open": est.diagnose(self.X, self.observations),
            "checks": str(est.check(self.X, self.held_out)).split("\n") if self.held_out else [],
        }

    def report(self, est: Any, path: Path) -> None:
        """Writes a page about the model; held-out sets are new to this one."""
        title = f"Model {self.spec.out}"
        if isinstance(self.rows, StoredTable):
            est.report(path, title=title)
            return
        held_out = (self.X, self.held_out) if self.held_out else None
        est.report(path, self.X, self.train_sets, eval=held_out, title=title)

    def _as_fitted(self, est: Any) -> dict[str, Any]:
        """The same of rows in files: what the fit itself has found by sets that it held out."""
        from setwise.summary.verdict import verdict

        scores, best = {}, est.leaderboard_[0] if est.leaderboard_ else None
        if best is not None:
            scores = {"held_out": est.held_out_score_, "held_out_constant": est.constant_score_}
        return {
            "log_likelihood": scores,
            "verdict": verdict(best["gain"], best["gain_error"]) if best else "",
            "guesses": [],
            "steps": est.steps_ or len(est.history_),
            "identifiability": est.identifiability_.facts(),
            "open": [],
            "checks": [],
        }


def _columns(rows: Table, spec: FitSpec, others: Collection[str]) -> tuple[Any, list[str]]:
    if isinstance(rows, StoredTable):
        return stored_columns(rows, spec, others)
    return choose_columns(rows, spec, others)


def _classes(spec: FitSpec) -> tuple[Any, list[str] | None]:
    """The number or the names of classes that --classes gives, and the names."""
    if not spec.classes:
        return None, None
    if spec.family:
        raise Mistake("--family is about numbers and --classes about classes: give one of them")
    if len(spec.classes) == 1 and spec.classes[0].isdecimal():
        if len(spec.classes[0]) > DIGITS:
            raise Mistake("--classes: a number of classes has not so many digits")
        return max(2, int(spec.classes[0])), None
    if len({*spec.classes}) < max(2, len(spec.classes)):
        raise Mistake(
            f"--classes {','.join(spec.classes)}: at least 2 different classes are needed"
        )
    return list(spec.classes), list(spec.classes)
