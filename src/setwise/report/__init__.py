"""Reports as HTML pages that need nothing else: a template, and what fills it."""

from setwise.report.model import report

__all__ = ["report"]
