"""The `fededge` command, also as `python -m fededge`."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

__all__ = ["start"]


def start() -> NoReturn:
    """Run the command; Ctrl-C at any instant ends it without a traceback.

    While Python imports modules and while it shuts down, the signal itself ends the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fededge.cli import main

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    start()
