"""`fededge demo`: a whole federation on this machine."""
