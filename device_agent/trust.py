"""The states of the federation that a device believes: signed by a trusted key, and not replayed.

Without a key it believes what the broker delivers. With one, it remembers across restarts when the
newest state was issued, and refuses older ones, although they are signed. The index of the agent's
store has a copy of that number, which may lag behind: if the file is lost, few old states pass.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from msgspec import Struct

from fededge.config import AgentConfig
from fededge.errors import DiskFullError, StoreError, WireError
from fededge.storage.files import replace_file
from fededge.storage.sealed import read_sealed, sealed
from fededge.wire.messages import Presence, Reply, State, TaskMessage
from fededge.wire.signing import verify
from fededge_agent.store import AgentStore
from fededge_agent.store.file_names import TRUST

__all__ = ["Trust"]

log = logging.getLogger("agent")


class Trusted(Struct, frozen=True):
    """Content of the file: when the newest state was issued."""

    newest: int


class Trust:
    """Checks signatures and issue numbers. The constructor only stores; `open` reads the files."""

    def __init__(self, config: AgentConfig, store: AgentStore) -> None:
        self.federation = config.federation
        self.key = config.trusted_key
        self.path = Path(config.state) / TRUST
        self.store = store
        self.keys: tuple[Any, ...] = ()
        self.newest = 0
        self.problem = ""

    def open(self) -> None:
        """Read the keys and the newest number; the store is open already."""
        if not self.key:
            return
        from fededge.credentials.signing_keys import read_trusted_keys  # loads cryptography: 7 MB

        self.keys = read_trusted_keys(Path(self.key))
        found, known = read_sealed(self.path, Trusted), self.store.index.trusted
        if found is None and self.path.exists() and not known:
            raise StoreError(
                f"{self.path}: unreadable; restore it, or remove it if you know that nobody "
                "replays old states"
            )
        self.newest = 0 if found is None else found.newest
        if self.newest < known:
            text = (
                "%s: missing, damaged or older than it was; going on from the state that %s names"
            )
            log.warning(text, self.path, self.store.folder)
            self.newest = known

    @property
    def fresh(self) -> bool:
        """True if a key is trusted that has not signed any state yet."""
        return bool(self.key) and self.newest == 0

    def check(self, state: State) -> None:
        """Return if the state is to be believed; otherwise `problem` says why not.

        Raises:
            WireError: if it is not to be believed.
            DiskFullError: if its issue number cannot be saved.
        """
        try:
            self._check(state)
        except WireError as error:
            self.problem = f"the state of the federation is refused: {error}"
            raise WireError(self.problem) from None
        except DiskFullError as error:  # believed but not saved, it could be replayed
            self.problem = f"the state of the federation cannot be remembered: {error}"
            raise
        self.problem = ""

    def vouch(self, message: TaskMessage | Reply | Presence) -> None:
        """Raise WireError unless a trusted key signed the message, if there is one."""
        if self.key:
            verify(message, self.keys)

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
            replace_file(self.path, sealed(Trusted(state.issued)))
            self.store.trust(state.issued)
            self.newest = state.issued
