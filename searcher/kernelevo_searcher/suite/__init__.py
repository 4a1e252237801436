"""Many problems, each searched with one budget in a run of its own, and what they come to together."""
