"""The shell that the coordinator and the agent share: inbox, loop, command queue, name."""
