"""The coordinator's hold on the federation's name, once it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fededge.errors import RefusedError, WireError
from fededge.transport.presence import Holder, new_claim
from fededge.transport.session import Incoming, Session
from fededge.wire.messages import Claim, Presence, decode, encode
from fededge_server.identity import Identity

__all__ = ["NameKeeper"]


class NameKeeper:
    """Announces the coordinator, answers claims, and tells a rival from somebody who poses as one.

    Only a living rival with our key makes us stop. Anybody else is named in the log.
    """

    def __init__(
        self,
        identity: Identity,
        session: Session,
        clock: Callable[[], float],
        warn: Callable[[str], None],
    ) -> None:
        self.identity = identity
        self.session = session
        self.clock = clock
        self.warn = warn
        self.holder = Holder(identity.instance)
        self.challenge: Claim | None = None

    def announce(self, answers: str = "") -> None:
        """Publish our presence."""
        presence = self.identity.presence(online=True, answers=answers)
        self.holder.says(presence.payload, self.clock())
        self.session.publish(presence.topic, presence.payload, retain=True)

    def answer(self, claim: Claim) -> None:
        """Answer whoever asks for the name; our own challenge is not for us."""
        if claim != self.challenge:
            self.announce(answers=claim.nonce)

    def hear(self, message: Incoming) -> bool:
        """Take in what was said under our name. True if it is the echo of our own presence.

        Raises:
            RefusedError: another coordinator with our key runs, and its instance is the smaller.
        """
        presence = None
        with contextlib.suppress(WireError):
            presence = decode(message.payload, Presence)
        self.holder.hears(message.payload, presence, self.clock())
        if presence is None:
            return False
        if self._must_stop(presence):
            raise RefusedError(f"{self._rivalry} (instance {presence.instance})")
        return presence.instance == self.identity.instance and not message.retained

    def _must_stop(self, presence: Presence) -> bool:
        """True if another process with our key provably runs, and we are the one to stop.

        It answers a nonce of this process, so an old presence cannot pass. Both sides decide
        alike: the smaller instance stays.
        """
        challenge = self.challenge
        if self.identity.key is None or challenge is None or presence.answers != challenge.nonce:
            return False
        other = presence.online and presence.instance < self.identity.instance
        return other and self.identity.vouches_for(presence)

    @property
    def _rivalry(self) -> str:
        return f"another coordinator of federation '{self.identity.federation}' runs"

    def connection_lost(self) -> None:
        self.holder.lost()

    def tick(self) -> None:
        """Repeat our presence if it was overwritten, and challenge a rival to prove itself."""
        if not self.holder.due(self.clock()):
            return
        self.announce()
        if not self.holder.rival:
            return
        self.warn(f"{self._rivalry}, or poses as it ({self.holder.rival})")
        if self.identity.key is not None:
            self.challenge = new_claim()
            topic = f"{self.identity.topics.coordinator}/claim"
            self.session.publish(topic, encode(self.challenge))
