"""`python -m fededge` does what the `fededge` command does."""

from __future__ import annotations

import sys

from fededge.cli import main

if __name__ == "__main__":
    sys.exit(main())
