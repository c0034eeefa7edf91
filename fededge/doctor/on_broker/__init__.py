"""Checks through the broker: reach, certificates, limits, access, the federation, a fake round."""
