"""The coordinator: rounds, selection, aggregation, its store and its page."""
