"""`make faults`: many seeds and one line of counts, or one seed with all that happened in it."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable

import torch

from tests.faults.day import run_day
from tests.faults.oracle import BrokenError
from tests.faults.schedules import hostile_seeds, run_scheduled, run_seed

Run = Callable[..., Counter[str]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--replay", type=int, help="one seed, with a trace")
    parser.add_argument("--scheduled", action="store_true", help="rounds with a schedule")
    parser.add_argument("--hostile", action="store_true", help="only those with hostile devices")
    parser.add_argument("--day", action="store_true", help="days of rounds without an end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    one = run_day if options.day else run_scheduled if options.scheduled else run_seed
    if options.replay is not None:
        return replay(one, options.replay)
    last = options.first + options.seeds
    seeds = hostile_seeds(last) if options.hostile else range(last)
    return run(one, seeds[options.first :])


def replay(one: Run, seed: int) -> int:
    try:
        counts = one(seed, print)
    except BrokenError as error:
        print(f"seed {seed}: {error}")
        return 1
    print(f"seed {seed}: {said(counts)}")
    return 0


def run(one: Run, seeds: range) -> int:
    total: Counter[str] = Counter()
    broken: list[int] = []
    start = time.monotonic()
    for done, seed in enumerate(seeds, 1):
        try:
            total += one(seed)
        except Exception as error:  # noqa: BLE001 - whatever a fault led to is a find
            broken.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}; make faults REPLAY={seed}")
        if sys.stderr.isatty():
            print(f"\r{done} of {len(seeds)}", end="", file=sys.stderr)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(seeds)} seeds, {len(broken)} broken, {minutes:.1f} minutes: {said(total)}")
    return 1 if broken else 0


def said(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))


sys.exit(main())
