"""Preprocessing of images and texts, the same for training and for apps."""
