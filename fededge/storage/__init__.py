"""Files: atomic replacement, sealed JSON, and chunks on disk."""
