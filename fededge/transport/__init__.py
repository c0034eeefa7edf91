"""What carries the bytes: the MQTT session, presence, and our own broker for demo and tests."""
