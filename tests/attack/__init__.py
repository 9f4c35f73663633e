"""An attack on the library: damaged files, kills, races, full disks, bad input.

    python -m tests.attack               # all of it, see `make attack`
    python -m tests.attack --quick       # what `make test` runs
    python -m tests.attack fuzz --seed 7 --cases 500

Each part is a generator of `Case`s; see `outcome`. A seed makes it repeatable.
"""
