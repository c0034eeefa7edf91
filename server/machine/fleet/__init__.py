"""The fleet: one record per device, its parts in a round, and the groups that rounds ask about."""
