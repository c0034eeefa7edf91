"""The contract of a method: base, objective, stack (composition), grammar, plugins, turn."""
