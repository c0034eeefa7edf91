"""Commands that let a box in, or change its credentials."""
