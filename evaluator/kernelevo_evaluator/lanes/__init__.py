"""Lanes of this host: one device each, its referee and its runners, and what keeps them warm and quiet."""
