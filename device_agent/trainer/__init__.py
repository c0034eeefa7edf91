"""The trainer process: torch, the device's data and its turns; the agent's process has no torch."""
