"""Commands of a fleet: services, set-up, status, audit, rollback, doctor."""
