"""TLS contexts, certificates and signing keys."""
