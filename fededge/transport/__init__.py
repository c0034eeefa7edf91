"""What carries the bytes: the MQTT session, presence, and a broker of our own for demo and tests."""
