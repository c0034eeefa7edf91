"""Commands for a fleet that runs: its devices, its pauses, its history."""
