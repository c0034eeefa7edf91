"""What the coordinator and the agent share as services."""
