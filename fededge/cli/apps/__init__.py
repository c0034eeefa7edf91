"""Commands for apps on a box: export, predict and serve-model."""
