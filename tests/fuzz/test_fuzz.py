"""The corpus, and mutations of it, through every reader of bytes from outside.

`make fuzz` does the same guided by coverage and for as long as one likes. What it finds is put into
corpus/ and stays here.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
MUTANTS = 3000
MOST_MEMORY = 16 * 1024 * 1024
"""Bytes that reading an input may take at its peak; the longest here has a few kilobytes."""


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_taken_or_refused_in_little_memory(name: str) -> None:
    target = TARGETS[name]
    taken = [target(data) for data in corpus(name)]
    assert any(taken)
    tracemalloc.start()
    try:
        for data in corpus(name):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            target(data)
            assert tracemalloc.get_traced_memory()[1] - before < MOST_MEMORY
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_are_taken_or_refused(name: str) -> None:
    target = TARGETS[name]
    outcomes = {target(data) for data in mutants(corpus(name), MUTANTS)}
    assert False in outcomes  # some must have been refused, or nothing was mutated


def mutants(seeds: list[bytes], count: int) -> Iterator[bytes]:
    """Bytes flipped, cut out, doubled, put elsewhere and made extreme, from one seed."""
    rng = random.Random(0)
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            data = mutated(rng, data, bytearray(rng.choice(seeds)))
        yield bytes(data)


def mutated(rng: random.Random, data: bytearray, other: bytearray) -> bytearray:
    place = rng.randrange(len(data) + 1)
    end = min(len(data), place + rng.choice((1, 2, 4, 8, 64)))
    kind = rng.randrange(5)
    if kind == 0 and place < len(data):
        data[place] ^= 1 << rng.randrange(8)
        return data
    if kind == 1:
        return data[:place] + data[end:]
    if kind == 2:
        return data[:end] + data[place:]
    if kind == 3:
        return data[:place] + other[rng.randrange(len(other) + 1) :]
    filler = rng.choice((b"\0", b"\xff", b"9", b"[", b'{"a":', b"-1e999", b"\xed\xa0\x80", b'"'))
    return data[:place] + filler * rng.choice((1, 4, 300)) + data[end:]
