"""A challenge to a rival for the federation's name: prove that you run and have our key."""

from __future__ import annotations

from fededge.service.presence import new_claim
from fededge.wire.messages import Claim, Presence
from fededge_server.identity import Identity

__all__ = ["Challenge"]


class Challenge:
    """Tells a living rival with our key from somebody who poses as one.

    Only the former makes us stop. Without a key nobody can prove anything, and nobody is asked.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.claim: Claim | None = None

    def renew(self) -> Claim | None:
        """A claim with a fresh nonce for the rival to answer; None if we have no key."""
        if self.identity.key is not None:
            self.claim = new_claim()
        return self.claim

    def lost_to(self, presence: Presence) -> bool:
        """True if another process with our key provably runs, and we are the one to stop.

        It answers a nonce of this process, so an old presence cannot pass. Both sides decide
        alike: the smaller instance stays.
        """
        if self.claim is None or presence.answers != self.claim.nonce:
            return False
        other = presence.online and presence.instance < self.identity.instance
        return other and self.identity.vouches_for(presence)
