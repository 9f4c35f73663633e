"""The experiments of the paper: one module per kind of table, the runner and the report.

A user of setwise like any other: it imports public names only.
"""
