"""Equal programs are recognised before anything is paid, and different ones are not confused."""

from __future__ import annotations

import pytest

from kernelevo_searcher.csource import CTokenKind, decode_literal, normal_c, tokenize_c
from kernelevo_searcher.dedupe import normal_digest

C = 'x = """\n#define A 8\n// words\nint  f(int a) { return a / A; } /* more */\n"""\n'


@pytest.mark.parametrize(
    "other",
    [
        "# a comment\n" + C,
        '"""A docstring."""\n' + C,
        C.replace("// words\n", ""),
        C.replace("int  f", "int f"),
        C.replace("/* more */", ""),
        C.replace('"""', "'''").replace("x = ", "x   =  "),
        'x = r"""\n#define A 8\nint f(int a)\n{\n  return a / A;\n}\n"""',
    ],
)
def test_layout_and_comments_do_not_count(other: str) -> None:
    assert normal_digest(other) == normal_digest(C)


@pytest.mark.parametrize(
    "other",
    [
        C.replace("A 8", "A 4"),
        C.replace("a / A", "a * A"),
        C + "y = 1\n",
        C.replace("x =", "z ="),
        C.replace("#define A 8\n// words\n", "#define A 8 "),
        C.replace("// words\n", '"// words";\n'),
    ],
)
def test_names_values_and_code_count(other: str) -> None:
    assert normal_digest(other) != normal_digest(C)


def test_ordinary_strings_count_as_they_are() -> None:
    assert normal_digest("x = 'a  b'") != normal_digest("x = 'a b'")


def test_what_is_no_python_still_has_a_digest() -> None:
    assert normal_digest("def (") == normal_digest("def (  \n")
    assert normal_digest("def (") != normal_digest("def )")
    assert normal_digest("x = '\0'") != normal_digest("x = 1")


def test_c_tokens() -> None:
    text = '#define A 8 // 9\nauto s = "a//b\\"c"; R"x(")" )x" \'\\\'\' 1.5e+3f <<<2'
    kinds = [(token.kind, token.text) for token in tokenize_c(text)]
    assert (CTokenKind.COMMENT, "// 9") in kinds
    assert (CTokenKind.STRING, '"a//b\\"c"') in kinds
    assert (CTokenKind.STRING, 'R"x(")" )x"') in kinds
    assert (CTokenKind.NUMBER, "1.5e+3f") in kinds
    assert (CTokenKind.PUNCTUATION, "<<<") in kinds
    assert all(text[token.start : token.end] == token.text for token in tokenize_c(text))
    assert normal_c("int a;/* x */ // y\n#define B 1\nint c;") == "int a ; \n # define B 1 \n int c ;"


@pytest.mark.parametrize("literal", ['"a\\n\\x41\\u00e4\\101\\N{BULLET}b"', "r'a\\n'", '"""a\\\nb"""', "'é\\t'"])
def test_literals_are_read_as_python_reads_them(literal: str) -> None:
    embedded = decode_literal(literal, 5)
    assert embedded is not None
    assert embedded.text == eval(literal)
    assert len(embedded.offsets) == len(embedded.text) + 1
    for index, character in enumerate(embedded.text):
        if embedded.is_plain(index, index + 1):
            start, end = embedded.span(index, index + 1)
            assert literal[start - 5 : end - 5] == character


@pytest.mark.parametrize("literal", ['b"a"', 'f"{a}"', '"a', "a", '"\\q"'[:-1]])
def test_other_literals_are_left_alone(literal: str) -> None:
    assert decode_literal(literal, 0) is None
