"""The evaluator: an isolated service that builds, checks and times kernels nobody trusts."""
