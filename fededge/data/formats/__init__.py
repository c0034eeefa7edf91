"""Readers of data files, one file a format."""
