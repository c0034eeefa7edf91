"""The agent: one per device; trains on what the device has, keeps it there, exports ONNX."""
