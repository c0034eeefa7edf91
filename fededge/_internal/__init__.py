"""Private helpers: lazy torch, child processes, malloc, logs, suggestions."""
