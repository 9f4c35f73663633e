"""See the package."""

import argparse
import sys
import time

from tests.attack.fuzz import fuzz
from tests.attack.outcome import Tally

PARTS = {
    "fuzz": lambda given: fuzz(
        given.seed, given.cases or (300 if given.quick else 10_000), given.case
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="default: all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    tally = Tally()
    for name in given.parts or PARTS:
        begin = time.perf_counter()
        for case in PARTS[name](given):
            tally.add(case)
        tally.seconds[case.part] = time.perf_counter() - begin
    print(tally)
    return int(bool(tally.bad))


if __name__ == "__main__":
    sys.exit(main())
