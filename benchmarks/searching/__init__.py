"""A search on landscapes that were recorded: the real engine and policy, and a formula in the place of the model."""
