"""The coordinator's identity: its instance, and its signature under everything that it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from fededge.credentials.signing_keys import SigningKey
from fededge.transport.session import Will
from fededge.wire.messages import Presence, Reply, State, TaskMessage, encode
from fededge.wire.signing import sign, signed_by
from fededge.wire.topics import Topics

__all__ = ["Identity"]

M = TypeVar("M", Presence, Reply, State, TaskMessage)


@dataclass(frozen=True)
class Identity:
    """One coordinator process. Without a `key` nothing is signed."""

    federation: str
    instance: str
    key: SigningKey | None = None

    @property
    def topics(self) -> Topics:
        return Topics(self.federation)

    def signed(self, message: M) -> M:
        return message if self.key is None else sign(message, self.key)

    def presence(self, online: bool, answers: str = "") -> Will:
        """Our presence; `answers` is the nonce of the claim that it answers."""
        presence = Presence(self.instance, online, self.federation, answers)
        return Will(f"{self.topics.coordinator}/status", encode(self.signed(presence)))

    def vouches_for(self, presence: Presence) -> bool:
        """True if a presence belongs to our federation, and has our signature if we have a key."""
        ours = presence.federation == self.federation
        return ours and (self.key is None or signed_by(presence, (self.key.public_key(),)))
