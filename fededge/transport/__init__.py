"""The MQTT transport: session, outbox, backpressure and presence. Only this package uses paho."""
