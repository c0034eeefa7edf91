"""The agent's state machines: events in, commands out, no I/O."""
