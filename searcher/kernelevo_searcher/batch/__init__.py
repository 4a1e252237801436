"""A run carried out by files: what it asks of models and evaluators is written out, and what they answered is read in.

For batch APIs, and for hosts that cannot be reached. The log, the policy, the budget and the results are those of a live run;
only who sends what is asked differs. Nothing in here talks to a network but `answering`, which serves the evaluator's side.
"""
