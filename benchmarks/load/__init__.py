"""Many clients that ask, cancel, go away and come back, against a server that is killed; what must be true afterwards."""
