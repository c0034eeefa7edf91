"""A pytest plugin (-p tests.ops.watched): fededge._C is the module that FEDEDGE_WATCHED names."""

from __future__ import annotations

import importlib.util
import os
import sys

import torch  # noqa: F401 - the module's libraries are its

spec = importlib.util.spec_from_file_location("fededge._C", os.environ["FEDEDGE_WATCHED"])
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["fededge._C"] = module
assert module.facts()["flags"] == "watched"
