"""Inputs of a model: pictures, scaling and tokens, by one rule for training and for apps."""
