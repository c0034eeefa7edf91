"""A round from its schedule to its end: invitations, state, rollout."""
