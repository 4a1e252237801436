"""The search client: an evolutionary LLM loop over one or more evaluators. Needs neither a GPU nor torch."""
