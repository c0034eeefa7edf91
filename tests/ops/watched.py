"""A pytest plugin (-p tests.ops.watched): the compiled modules are those in FEDEDGE_WATCHED."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import torch  # noqa: F401 - the libraries of one of them are its

for name in ("_C", "_sums"):
    path = Path(os.environ["FEDEDGE_WATCHED"]) / f"{name}.so"
    spec = importlib.util.spec_from_file_location(f"fededge.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[f"fededge.{name}"] = module

assert sys.modules["fededge._C"].facts()["flags"] == "watched"

from fededge.federated import sums  # noqa: E402 - after what it would otherwise load

assert sums.CHOICE.build is not None
