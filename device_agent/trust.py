"""Which states of the federation a device believes: signed by a trusted key, and never older ones.

Without a key it believes what the broker delivers. With one, it also remembers across restarts
when the newest state was issued: a copy of an older one, though signed, cannot take it back.
"""

from __future__ import annotations

import json
from pathlib import Path

from fededge.config import AgentConfig
from fededge.errors import DiskFullError, StoreError, WireError
from fededge.files import replace_file
from fededge.wire.messages import State
from fededge.wire.signing import read_trusted_keys, verify

__all__ = ["Trust"]


class Trust:
    """The constructor only stores; `open` reads the keys and what is remembered."""

    def __init__(self, config: AgentConfig) -> None:
        self.federation = config.federation
        self.key = config.trusted_key
        self.path = Path(config.state) / "trust.json"
        self.newest = 0
        self.problem = ""

    def open(self) -> None:
        self.keys = read_trusted_keys(Path(self.key)) if self.key else ()
        if not self.key or not self.path.exists():
            return
        try:
            self.newest = int(json.loads(self.path.read_bytes())["newest"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"{self.path}: unreadable ({error}); restore it, or remove it if you know that "
                "nobody replays old states"
            ) from None

    @property
    def fresh(self) -> bool:
        """Whether a key is trusted that has not vouched for anything yet."""
        return bool(self.key) and self.newest == 0

    def check(self, state: State) -> None:
        """Return if the state is to be believed; `problem` says in one sentence why it is not."""
        try:
            self._check(state)
        except WireError as error:
            self.problem = f"the state of the federation is refused: {error}"
            raise WireError(self.problem) from None
        except DiskFullError as error:  # believed but forgotten, it could be taken back
            self.problem = f"the state of the federation cannot be remembered: {error}"
            raise
        self.problem = ""

    def _check(self, state: State) -> None:
        if state.federation != self.federation:
            raise WireError(f"it names federation '{state.federation}', not '{self.federation}'")
        if not self.key:
            return
        verify(state, self.keys)
        if state.issued < self.newest:
            raise WireError(
                "it is older than one that this device has seen: somebody repeats it, or the "
                "coordinator's clock was set back"
            )
        if state.issued > self.newest:
            replace_file(self.path, json.dumps({"newest": state.issued}).encode())
            self.newest = state.issued
