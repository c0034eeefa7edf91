"""The contract of a method: hooks, loss, private state, composition, grammar and plugins."""
