"""Commands for experiments: simulate, compare and partition, with their flags."""
