"""MQTT brokers: the local one for demo and tests, and the files of a closed Mosquitto."""
