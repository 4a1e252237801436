"""Languages a candidate may be written in: recognised and built here, without torch."""
