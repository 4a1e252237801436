"""Tuning without a model: finding parameters in a source, and searching their values."""
