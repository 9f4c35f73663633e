"""`python -m setwise.cli`."""

from setwise.cli import app

app()
