"""Code shared by coordinator and simulator: aggregation, robustness, selection, rollout."""
