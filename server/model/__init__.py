"""The global model: the network, merging, versions, publishing, rollback."""
