"""The exporter process: personal models become ONNX files, without torch."""
