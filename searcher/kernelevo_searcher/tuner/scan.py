"""Finding the parameters of a candidate: its Python by libcst, the C in its strings by tokens.

Looked at are constants in upper case, `tl.constexpr` defaults, keyword arguments of launches (`num_warps`, `BLOCK=…`), the
only `triton.Config` of an autotuner, lists of compiler flags, and C code in string literals. A comment `# tune: 1, 2, 4`
beside a value names its values, `# tune: no` keeps it. What reaches no kernel is left out. Nothing is imported or run.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from kernelevo_searcher.csource import decode_literal, looks_like_c
from kernelevo_searcher.tuner.cscan import defined_in_c, scan_c
from kernelevo_searcher.tuner.flags import FlagElement, FlagSite
from kernelevo_searcher.tuner.ladders import Ladder, hinted_ladder, integer_ladder, is_kept
from kernelevo_searcher.tuner.reach import Launch, Reach
from kernelevo_searcher.tuner.space import Parameter, Site, TokenSite, TunableSource

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find_parameters"]

_UPPER = re.compile(r"_?[A-Z][A-Z0-9_]*")
_LAUNCH_KEYWORDS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg"})
_FLAG_ARGUMENTS = frozenset({"extra_cflags", "extra_cuda_cflags"})
_FLAG_NAME = re.compile(r"(?i)(c|cxx|cpp|cuda|nvcc|compile|compiler)?_?(c?flags|options)$")
_DEVICE_NAME = re.compile(r"(?i)cuda|nvcc")
_LEVEL_FLAG = re.compile(r"-O(?:[0-3s]|fast)")
_PRAGMA_OMP = re.compile(r"#\s*pragma\s+omp\b")
_VECTORS = re.compile(
    r"\b(?:[a-z]+mmintrin\.h|immintrin\.h|arm_neon\.h|_mm(?:256|512)?_\w+|__m(?:128|256|512)\w*|CPU_CAPABILITY\w*|at::vec)\b"
)
"""Vector instructions by name, as people and TorchInductor write them."""


def find_parameters(source: str) -> TunableSource | None:
    """The source with its parameters, or None where there are none, or where it is no Python."""
    try:
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, RecursionError, UnicodeError, ValueError):
        return None
    if module.code != source:
        return None
    finder = _Finder(source, openmp=_PRAGMA_OMP.search(source) is not None, vectors=_VECTORS.search(source) is not None)
    try:
        MetadataWrapper(module, unsafe_skip_copy=True).visit(finder)
    except RecursionError:
        return None
    return finder.result()


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, source: str, *, openmp: bool, vectors: bool) -> None:
        super().__init__()
        self._source = source
        self._openmp = openmp
        self._vectors = vectors
        self._line_starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", source))]
        self._found: list[tuple[Site, tuple[Parameter, ...]]] = []
        self._flag_names: dict[str, int] = {}
        self._flag_lists: set[int] = set()
        """Starts of lists already taken."""
        self._reach = Reach()
        self._reaches: dict[int, Callable[[], bool]] = {}
        """By where a site starts: whether its value reaches the kernel, known once all of the source was seen."""

    def result(self) -> TunableSource | None:
        """Sites in the order of the source, names made distinct, overlaps left out."""
        sites: list[Site] = []
        parameters: list[Parameter] = []
        taken: dict[str, int] = {}
        end = 0
        for site, found in sorted(self._found, key=lambda item: (item[0].start, item[0].end)):
            if site.start < end or not self._reaches.get(site.start, lambda: True)():
                continue
            end = site.end
            if isinstance(site, FlagSite):
                site = replace(site, unread=frozenset(name for name in site.macros if not self._reach.used[name]))
                found = site.parameters
            if isinstance(site, TokenSite):
                taken[site.name] = taken.get(site.name, 0) + 1
                if taken[site.name] > 1:
                    name = f"{site.name}#{taken[site.name]}"
                    site, found = replace(site, name=name), (replace(found[0], name=name),)
            sites.append(site)
            parameters += found
        if not parameters:
            return None
        return TunableSource(self._source, tuple(parameters), tuple(sites))

    # Where things are.

    def _span(self, node: cst.CSTNode) -> tuple[int, int]:
        position = self.get_metadata(PositionProvider, node)
        assert isinstance(position, CodeRange)
        return (
            self._line_starts[position.start.line - 1] + position.start.column,
            self._line_starts[position.end.line - 1] + position.end.column,
        )

    def _start(self, node: cst.List | cst.Tuple) -> int:
        """Where a list or a tuple starts, its parentheses included, which are not part of the node's own position."""
        start, _ = self._span(node)
        return self._source.rfind("(", 0, start) if isinstance(node, cst.Tuple) and node.lpar else start

    def _comments(self, offset: int) -> list[str]:
        """Comments behind `offset` on its line, and the line above if it is a comment alone."""
        line = bisect_right(self._line_starts, offset) - 1
        line_end = self._line_starts[line + 1] if line + 1 < len(self._line_starts) else len(self._source)
        behind = self._source[offset:line_end].rstrip()
        comments = [behind[behind.index("#") :]] if "#" in behind else []
        if line > 0:
            above = self._source[self._line_starts[line - 1] : self._line_starts[line]].strip()
            if above.startswith("#"):
                comments.append(above)
        return comments

    # Single values.

    def _add_value(
        self, name: str, value: cst.BaseExpression, *, inferred: bool, reaches: Callable[[], bool] | None = None
    ) -> None:
        start, end = self._span(value)
        if reaches is not None:
            self._reaches[start] = reaches
        text = self._source[start:end]
        comments = self._comments(end)
        if any(is_kept(comment, name) for comment in comments):
            return
        ladder = next((ladder for comment in comments if (ladder := hinted_ladder(comment, name, text))), None)
        if ladder is None and inferred:
            ladder = self._inferred(name, value, text)
        if ladder is not None and "\n" not in text:
            site = TokenSite(start, end, name, text)
            self._found.append((site, (Parameter(name, ladder.values, ladder.ordered, ladder.leverage),)))

    @staticmethod
    def _inferred(name: str, value: cst.BaseExpression, text: str) -> Ladder | None:
        if isinstance(value, cst.Integer):
            return integer_ladder(name, text)
        if isinstance(value, cst.Name) and text in ("True", "False"):
            return Ladder(("False", "True"), ordered=False, leverage=1.0)
        return None

    def visit_Assign(self, node: cst.Assign) -> None:
        if len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            self._assigned(node.targets[0].target.value, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if isinstance(node.target, cst.Name) and node.value is not None:
            self._assigned(node.target.value, node.value)

    def _assigned(self, name: str, value: cst.BaseExpression) -> None:
        self._reach.defines(name)
        reaches = partial(self._reach.named, name)
        if isinstance(value, cst.Call) and _last_name(value.func) == "constexpr" and len(value.args) == 1:
            value = value.args[0].value
        if isinstance(value, (cst.List, cst.Tuple)):
            if _FLAG_NAME.fullmatch(name):
                self._reaches[self._start(value)] = reaches
                self._add_flags(name, value)
        elif isinstance(value, (cst.Integer, cst.Name, cst.Float, cst.SimpleString, cst.UnaryOperation)):
            self._add_value(name, value, inferred=_UPPER.fullmatch(name) is not None, reaches=reaches)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        for place, parameter in enumerate(
            (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)
        ):
            if parameter.default is None or parameter.annotation is None:
                continue
            if _last_name(parameter.annotation.annotation) == "constexpr":
                name = parameter.name.value
                reaches = partial(self._reach.default, node.name.value, name, place)
                self._add_value(name, parameter.default, inferred=True, reaches=reaches)

    def visit_Name(self, node: cst.Name) -> None:
        self._reach.see_names((node.value,))

    def visit_FormattedStringText(self, node: cst.FormattedStringText) -> None:
        self._reach.see_text(node.value)

    def _launched(self, node: cst.Call) -> None:
        function = node.func.value if isinstance(node.func, cst.Subscript) else node.func
        if isinstance(function, cst.Name):
            launch = Launch(
                positional=sum(argument.keyword is None and not argument.star for argument in node.args),
                keywords=frozenset(argument.keyword.value for argument in node.args if argument.keyword is not None),
                unpacks=any(argument.star for argument in node.args),
            )
            self._reach.launches.setdefault(function.value, []).append(launch)

    def visit_Call(self, node: cst.Call) -> None:
        self._launched(node)
        name = _last_name(node.func)
        if name == "Config" and not self._is_only_config(node):
            return
        for argument in node.args:
            if argument.keyword is None:
                if name == "Config" and isinstance(argument.value, cst.Dict):
                    self._add_dict(argument.value)
                continue
            keyword = argument.keyword.value
            if keyword in _FLAG_ARGUMENTS and isinstance(argument.value, (cst.List, cst.Tuple)):
                self._add_flags(keyword, argument.value, argument=argument, call=node)
            elif keyword in _LAUNCH_KEYWORDS or _UPPER.fullmatch(keyword):
                self._add_value(keyword, argument.value, inferred=True)
        if name == "load_inline":
            self._offer_flags(node)

    def _is_only_config(self, node: cst.Call) -> bool:
        """An autotuner with several configurations chooses by itself."""
        element = self.get_metadata(ParentNodeProvider, node)
        around = self.get_metadata(ParentNodeProvider, element) if isinstance(element, cst.Element) else None
        return not isinstance(around, (cst.List, cst.Tuple)) or len(around.elements) == 1

    def _add_dict(self, node: cst.Dict) -> None:
        for element in node.elements:
            if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                name = element.key.evaluated_value
                if isinstance(name, str) and _UPPER.fullmatch(name):
                    self._add_value(name, element.value, inferred=True)

    # Compiler flags.

    def visit_List(self, node: cst.List) -> None:
        if any(_LEVEL_FLAG.fullmatch(element.flag or "") for element in self._elements(node) or ()):
            self._add_flags("flags", node)

    def _elements(self, node: cst.List | cst.Tuple) -> tuple[FlagElement, ...] | None:
        elements = []
        for element in node.elements:
            flag = element.value.evaluated_value if isinstance(element.value, cst.SimpleString) else None
            start, end = self._span(element.value)
            prefix = "*" if isinstance(element, cst.StarredElement) else ""
            elements.append(FlagElement(prefix + self._source[start:end], flag if isinstance(flag, str) else None))
        return tuple(elements)

    def _add_flags(
        self,
        name: str,
        node: cst.List | cst.Tuple,
        *,
        argument: cst.Arg | None = None,
        call: cst.Call | None = None,
    ) -> None:
        start, end = self._span(node)
        if isinstance(node, cst.Tuple) and node.lpar:
            start = self._start(node)
            end = self._source.find(")", end) + 1
        text = self._source[start:end]
        elements = self._elements(node)
        # Rewriting would lose a comment; a tuple without parentheses is too rare to handle.
        if start in self._flag_lists or elements is None or "#" in text or text[:1] not in "[(":
            return
        self._flag_lists.add(start)
        lead = ""
        if (
            call is not None
            and argument is call.args[-1]
            and len(call.args) > 1
            and _last_name(call.func) == "load_inline"
        ):
            # With its comma, so that a list put in and a list that was there are the same stretch.
            before = self._span(call.args[-2].value)[1]
            lead = self._source[before:start]
            if "#" in lead:
                lead = ""
            else:
                start, text = before, lead + text
        indent = None
        closing_indent = ""
        if "\n" in text[len(lead) :]:
            first = re.search(r"\n([ \t]*)\S", text[len(lead) :])
            last = re.search(r"\n([ \t]*)\S?$", text)
            indent, closing_indent = (first[1] if first else ""), (last[1] if last else "")
        self._add_flag_site(
            FlagSite(
                start=start,
                end=end,
                text=text,
                name=self._flag_name(name),
                lead=lead,
                elements=elements,
                brackets=("[", "]") if text[len(lead)] == "[" else ("(", ")"),
                multiline_indent=indent,
                closing_indent=closing_indent,
                device=_DEVICE_NAME.search(name) is not None,
                openmp=self._openmp,
                vectors=self._vectors,
            )
        )

    def _offer_flags(self, node: cst.Call) -> None:
        """A `load_inline` of C++ without flags is compiled without optimisation: offer to put a list in."""
        keywords = {argument.keyword.value for argument in node.args if argument.keyword is not None}
        starred = any(argument.star for argument in node.args)
        if "extra_cflags" in keywords or starred or not node.args or "cuda_sources" in keywords:
            return
        if "cpp_sources" not in keywords and len(node.args) < 2:
            return
        end = self._span(node.args[-1].value)[1]
        self._add_flag_site(
            FlagSite(
                start=end,
                end=end,
                text="",
                name=self._flag_name("extra_cflags"),
                lead=", extra_cflags=",
                elements=(),
                openmp=self._openmp,
                vectors=self._vectors,
            )
        )

    def _flag_name(self, name: str) -> str:
        self._flag_names[name] = self._flag_names.get(name, 0) + 1
        return name if self._flag_names[name] == 1 else f"{name}#{self._flag_names[name]}"

    def _add_flag_site(self, site: FlagSite) -> None:
        if site.parameters:
            self._found.append((site, site.parameters))

    # C code in strings.

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        start, _ = self._span(node)
        embedded = decode_literal(node.value, start)
        if self._is_docstring(node):
            return
        if embedded is None or not looks_like_c(embedded.text):
            self._reach.see_text(node.value)
            return
        self._reach.see_c(embedded.text)
        for name in defined_in_c(embedded.text):
            self._reach.defines(name)
        for parameter in scan_c(embedded.text):
            if embedded.is_plain(parameter.token.start, parameter.token.end):
                token_start, token_end = embedded.span(parameter.token.start, parameter.token.end)
                site = TokenSite(token_start, token_end, parameter.name, parameter.token.text)
                ladder = parameter.ladder
                self._found.append((site, (Parameter(parameter.name, ladder.values, ladder.ordered, ladder.leverage),)))
                if parameter.defined:
                    self._reaches[token_start] = partial(self._reach.named, parameter.name)

    def _is_docstring(self, node: cst.SimpleString) -> bool:
        return isinstance(self.get_metadata(ParentNodeProvider, node), cst.Expr)


def _last_name(node: cst.CSTNode) -> str:
    """`constexpr` of `tl.constexpr`; empty for what is no name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Name):
        return node.value
    return ""
