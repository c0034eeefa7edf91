"""Brokers: starting, provisioning and closing them."""
