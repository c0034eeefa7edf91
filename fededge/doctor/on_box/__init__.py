"""Checks that need only the box: its installation, disk, clock, state folder and data."""
