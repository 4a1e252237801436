"""What finished runs taught, kept in a bank that later runs may read.

A bank holds words of a fixed vocabulary, verdicts and measured effects, and nothing else: no source, no name of a file, a problem
or a parameter, nothing that a person or a model wrote. What is read from one is held to the same, so that nobody can put words
into a prompt by way of a bank. No model is asked, and nothing here decides what a search does.
"""
