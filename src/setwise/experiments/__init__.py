"""The paper's experiments: one module per kind of table, the runner and the report."""
