"""Coverage-guided fuzzing of every reader of bytes from outside: `make fuzz N=1000000`.

Each target runs in a process of its own, under a limit of memory; libFuzzer, through atheris, grows
a corpus in build/fuzz from the one in this folder. An input that raises anything but the project's
own refusal, takes more memory than the limit or more than ten seconds is written to build/fuzz and
named; put it into corpus/ with its fix.
"""

from __future__ import annotations

import argparse
import importlib
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
BUILD = HERE.parents[1] / "build" / "fuzz"
MOST_MEMORY = 512 * 1024 * 1024
"""Bytes that reading one input may add to what the process has when all is loaded."""

LONGEST = 8192
SECONDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=int, help="how many inputs each target gets")
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        fuzz(options.targets[0], options.inputs, options.seed)
    names = options.targets or sorted(path.name for path in CORPUS.iterdir() if path.is_dir())
    failed = [name for name in names if not passes(name, options.inputs, options.seed)]
    if failed:
        print(f"finds in: {', '.join(failed)}")
    return 1 if failed else 0


def passes(name: str, inputs: int, seed: int) -> bool:
    command = [sys.executable, __file__, str(inputs), name, "--seed", str(seed), "--inside"]
    begin = time.monotonic()
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.monotonic() - begin
    done = re.findall(r"^#(\d+)\s.*?cov: (\d+)", ran.stdout, re.MULTILINE)
    count, coverage = done[-1] if done else ("0", "0")
    verdict = "no find" if ran.returncode == 0 else "FIND"
    print(f"{name:9} {count:>9} inputs, {coverage:>5} branches, {seconds:6.1f} s: {verdict}")
    if ran.returncode != 0:
        print(ran.stdout[-4000:])
    return ran.returncode == 0


def fuzz(name: str, inputs: int, seed: int) -> None:
    """Run libFuzzer on one target; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["fededge", "safetensors", "tomllib", "targets"]):
        target = importlib.import_module("targets").TARGETS[name]
    for data in target.seeds:  # what is loaded lazily is there before the limit is set
        target(data)
    limit_memory()
    grown = BUILD / name
    grown.mkdir(parents=True, exist_ok=True)
    flags = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={LONGEST}", f"-timeout={SECONDS}"]
    flags += ["-rss_limit_mb=0", f"-artifact_prefix={BUILD}/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *flags, str(grown), str(CORPUS / name)], lambda data: target(data))
    atheris.Fuzz()


def limit_memory() -> None:
    """More address space than now and the limit is refused: a MemoryError, and so a find."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    sys.exit(main())
