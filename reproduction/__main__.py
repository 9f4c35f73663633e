"""`python -m reproduction`."""

from reproduction.command import app

if __name__ == "__main__":  # processes that a run begins import this module too
    app(prog_name="python -m reproduction")
