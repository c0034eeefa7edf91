"""Exports on the agent's side: the thread, the process, and promotion of personal models."""
