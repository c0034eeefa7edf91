"""The wire format: topics, messages, chunks, tensors, encodings and signatures. No I/O."""
