"""The small harness inside a sandbox, the same for reference and candidate. Imports torch; holds nothing worth stealing.

Everything here shares a process with code that nobody trusts: what it says is a claim, and nothing in it defends anything.
"""
