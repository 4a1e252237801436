"""Proposals from language models: the endpoint, its replies, the edits in them, their price, and the proposer.

Knows nothing of evaluators and of the policy: it turns one request for a proposal into one reply with its usage.
"""
