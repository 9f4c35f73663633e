"""The command line, called within this process."""

from __future__ import annotations

import shlex

from typer.testing import CliRunner

from setwise.cli import app


def call(line):
    result = CliRunner().invoke(app, shlex.split(line))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(line):
    result = call(line)
    assert result.exit_code == 0, result.output
    return result
