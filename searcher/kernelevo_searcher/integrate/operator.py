"""The best kernel of a run as a file that registers it as an operator of torch, so that torch.compile takes it.

The file needs nothing but torch and what the kernel needs: it holds the kernel as it was verified, the reference as text (for
shapes, and for gradients), and a few lines between them.
"""

from __future__ import annotations

import ast
import pprint
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from kernelevo_searcher.closure import SourceFile
from kernelevo_searcher.inputs import BadInput
from kernelevo_searcher.runs import package_version

if TYPE_CHECKING:
    from kernelevo_api.types import ProblemReport
    from kernelevo_searcher.best import BestKernel

__all__ = ["operator_module", "operator_name"]

_OURS = frozenset(
    {"ModelOperator", "_instances", "_handles", "_structure", "_flat", "_fresh", "_reference", "_SPEC", "_REFERENCE"}
)
"""Names that the lines behind the kernel define."""


def operator_name(kernel: BestKernel, problem: str) -> str:
    """The operator's name within `torch.ops.kernelevo`: the problem's, and the start of the candidate's digest."""
    name = re.sub(r"\W+", "_", problem).strip("_").lower() or "kernel"
    return f"{name if not name[0].isdigit() else f'p{name}'}_{kernel.digest[:8]}"


def operator_module(kernel: BestKernel, problem: str, reference: str, report: ProblemReport) -> str:
    """The file's text.

    Args:
        problem: its name.
        reference: its source.
        report: what its audit found.

    Raises:
        BadInput: it cannot be an operator; the message says why.
    """
    if report.mutates_inputs:
        raise BadInput(
            "the reference writes into its inputs: what an operator writes to has to be declared, and is not here."
        )
    methods = {node.name for node in ast.walk(ast.parse(kernel.source)) if isinstance(node, ast.FunctionDef)}
    if "load_reference_state" in methods:
        raise BadInput(
            "this kernel packs its weights (load_reference_state), so that it does not see when they change: it is a module, not "
            "an operator. Take it as it is: kernelevo best RUN -o FILE"
        )
    clash = sorted(_OURS & SourceFile(Path("kernel.py"), kernel.source).binds.keys())
    if clash:
        raise BadInput(f"the kernel defines {', '.join(clash)} itself.")
    name = operator_name(kernel, problem)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates", encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Python, not HTML: what goes in is a literal or an identifier
    )
    tail = environment.get_template("operator.py.j2").render(
        version=package_version(),
        reference=_literal(reference),
        operator=name,
        module=f"kernelevo_reference_{name}",
    )
    text = f"{kernel.source.rstrip()}\n\n\n{tail}"
    compile(text, "kernel.py", "exec", dont_inherit=True)
    return text


def _literal(text: str) -> str:
    """A text as a literal that people can read where it allows that."""
    if "'''" not in text and "\\" not in text and not text.endswith("'"):
        return f"'''\\\n{text}'''"
    return pprint.pformat(text, width=120)
