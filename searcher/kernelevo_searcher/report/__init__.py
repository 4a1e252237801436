"""The report of a run: one self-contained HTML file.

Everything in it may have been written by a candidate, a compiler or a model, so everything is escaped, the page has no
scripts at all, and its content policy forbids them and every reference to the network.
"""

from kernelevo_searcher.report.page import write_report

__all__ = ["write_report"]
