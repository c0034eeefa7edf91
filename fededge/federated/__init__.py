"""What coordinator and simulator share: aggregation, robust combination, selection, rollout."""
