"""Bytes that travel: topics, messages, chunks and tensors. No sockets here."""
