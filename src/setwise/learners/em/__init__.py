"""EM: any scikit-learn estimator as a learner."""

from setwise.learners.em.learner import EM

__all__ = ["EM"]
