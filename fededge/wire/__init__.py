"""Bytes that travel: topics, messages, chunks and tensors, and where they land. No sockets here."""
