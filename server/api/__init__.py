"""The local HTTP API: a unix socket in the state folder, for commands on the same machine."""
