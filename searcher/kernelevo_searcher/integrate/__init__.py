"""A found kernel in somebody's own code: as an operator of torch, and in the place of a definition in a file."""
