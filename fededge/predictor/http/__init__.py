"""The HTTP endpoint of `fededge serve-model`: a model for apps in any language."""
