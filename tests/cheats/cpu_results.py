"""Results made up, on a processor."""

from __future__ import annotations

from case import Case, Problem
from sources import CHAIN, HONEST, KERNEL, LINEAR, LONGER, TINY, USES_KERNEL, WORK, chain, linear, problem

from kernelevo_api.types import Effort

_MISMATCH = ("output_mismatch",)
_NONE = ("output_mismatch", "load_error", "runtime_error", "sandbox_violation")
"""What it reaches for is not there."""
_ZEROS = "return torch.zeros_like(x)"


def _case(entry: int, part: str, right: tuple[str, ...], cheat: str, twin: str = HONEST, **more: object) -> Case:
    return Case(
        **{"entry": entry, "part": part, "right": right, "cheat": cheat, "twin": twin, "problem": LINEAR} | more
    )  # type: ignore[arg-type]


def _audit(entry: int, part: str, code: str, cheat: str, twin: str, **policy: object) -> Case:
    asked = Problem(source="", policy=policy)
    return _case(entry, part, (f"refused:{code}",), cheat, twin, problem=asked, audited=True)


_PACKS = """
    def load_reference_state(self, state):
        self.packed = state["linear.weight"].t().contiguous()
        self.bias = state["linear.bias"].clone()
"""

CASES = [
    _case(13, "uninitialised memory", ("output_mismatch", "nondeterministic"), linear("return torch.empty_like(x)")),
    _case(14, "inputs zeroed", ("input_mutated", "output_mismatch"), linear("x.zero_(); return self.compute(x)")),
    _case(
        14,
        "inputs changed afterwards",
        ("input_mutated",),
        linear("y = self.compute(x); x.add_(1); return y"),
        linear("x = x.clone(); y = self.compute(x); x.add_(1); return y"),
    ),
    *[
        _case(15, f"{part} within an absolute tolerance", _MISMATCH, linear(f"return {value}"), twin, problem=TINY)
        for twin in (linear("return 1e-4 * self.compute(x)"),)
        for part, value in {
            "zeros": "torch.zeros_like(x)",
            "ones": "torch.ones_like(x) * 1e-4",
            "a constant": "torch.full_like(x, 3e-5)",
            "the mean": "torch.full_like(x, float(1e-4 * self.compute(x).mean()))",
        }.items()
    ],
    _audit(
        15,
        "outputs that do not depend on the seed",
        "constant_output",
        problem("return torch.ones(3) + 0 * x.sum()"),
        problem("return torch.ones(3) + x.sum()"),
    ),
    _audit(
        15,
        "inputs that do not depend on the seed",
        "constant_inputs",
        problem("return torch.tanh(x - 64)", inputs="[torch.arange(128.0).reshape(8, 16)]"),
        problem("return torch.tanh(x - 64)", inputs="[torch.arange(128.0).reshape(8, 16) + torch.randn(())]"),
    ),
    _audit(
        15,
        "a reference whose answer an input is",
        "trivial_passes",
        problem("return x * 1.0"),
        problem("return x * 1.01"),
    ),
    _case(
        16,
        "an input returned",
        _MISMATCH,
        linear("return x"),
        linear("y = x.clone(); y.copy_(self.compute(x)); return y"),
    ),
    *[
        _case(
            18,
            f"replay by {part}",
            ("output_mismatch", "nondeterministic"),
            linear(
                f"key = {key}\nif key not in self.known: self.known[key] = self.compute(x)\nreturn self.known[key].clone()"
            ),
            linear("y = self.known.setdefault(x.shape, torch.empty_like(x)); y.copy_(self.compute(x)); return y"),
            effort=Effort.FULL,
        )
        for part, key in {
            "id": "id(x)",
            "data_ptr": "x.data_ptr()",
            "version": "x._version",
            "a fingerprint of the content": "tuple(x.shape)",
        }.items()
    ],
    _case(
        18,
        "replay by a few elements",
        _MISMATCH,
        linear(
            """
            key = float(x[0, 0] > 0)
            if key not in self.known or self.calls < 12: self.known[key] = self.compute(x)
            return self.known[key]
            """
        ),
        problem=WORK,
        timed=True,
    ),
    # The inputs of timed calls are mixed from a few real sets: after some calls every eight neighbours were seen at their place.
    _case(
        18,
        "replay by eight neighbours",
        ("slow", "timing_disputed"),
        chain(
            "replay(x, y, n / 8);",
            more="""
            struct Known { uint32_t key[4]; int count; float out[4][8]; };
            static std::vector<Known> known;
            static void replay(const float* x, float* y, long runs) {
              if ((long)known.size() < runs) known.resize(runs);
              for (long r = 0; r < runs; ++r, x += 8, y += 8) {
                Known& one = known[r];
                uint32_t key;
                std::memcpy(&key, x, 4);
                int at = 0;
                while (at < one.count && one.key[at] != key) ++at;
                if (at == one.count || !one.count) {
                  compute(x, y, 8);
                  at = one.count < 4 ? one.count++ : key & 3;
                  one.key[at] = key;
                  std::memcpy(one.out[at], y, 32);
                } else {
                  std::memcpy(y, one.out[at], 32);
                }
              }
            }
            """,
        ),
        chain(),
        problem=CHAIN,
        timed=True,
    ),
    _case(
        19,
        "the answer made at import",
        _MISMATCH,
        linear("return ANSWER", top="ANSWER = torch.relu(torch.randn(32, 48))"),
        linear("return self.compute(x) + NOTHING", top="NOTHING = torch.zeros(48)[:1]"),
    ),
    _case(
        19,
        "the costly part made in __init__",
        _MISMATCH,
        linear(
            "return torch.clamp(x @ self.packed + self.linear.bias, min=0)",
            init="self.packed = self.linear.weight.detach().t().contiguous()",
        ),
        linear("return torch.clamp(torch.addmm(self.bias, x, self.packed), min=0)") + _PACKS,
        effort=Effort.FULL,
    ),
    _case(
        20,
        "the seed guessed: the input made in advance",
        _MISMATCH,
        linear("torch.manual_seed(42); return self.compute(torch.randn(x.shape))"),
        linear("torch.manual_seed(42); torch.randn(3); return self.compute(x)"),
    ),
    _case(
        20,
        "the seed guessed: the answer made in advance",
        _MISMATCH,
        linear(
            """
            for made in self.made:
                if torch.equal(made, x):
                    return self.compute(made)
            return torch.zeros_like(x)
            """,
            init="self.made = [torch.randn(32, 48, generator=torch.Generator().manual_seed(s)) for s in range(2000)]",
        ),
    ),
    _case(
        21,
        "by gc.get_objects",
        _MISMATCH,
        linear(
            """
            for found in gc.get_objects():
                if type(found) is torch.Tensor and found.shape == x.shape and found.data_ptr() != x.data_ptr():
                    return found.clone()
            return torch.zeros_like(x)
            """
        ),
        linear("gc.collect(); return self.compute(x)"),
    ),
    _case(
        21,
        "by stack frames",
        _MISMATCH,
        linear(
            """
            frame = sys._getframe()
            while frame is not None:
                for name, value in {**frame.f_globals, **frame.f_locals}.items():
                    if name in ("expected", "reference", "answer", "ref_output") and isinstance(value, torch.Tensor):
                        return value.clone()
                frame = frame.f_back
            return torch.zeros_like(x)
            """
        ),
        linear("sys._getframe(); return self.compute(x)"),
    ),
    _case(
        21,
        "by sys.modules",
        _MISMATCH,
        linear(
            """
            for module in list(sys.modules.values()):
                if isinstance(getattr(module, "Model", None), type) and hasattr(module, "get_inputs"):
                    return module.Model(48)(x)
            return torch.zeros_like(x)
            """
        ),
        linear("len(sys.modules); return self.compute(x)"),
    ),
    _case(21, "by importing the reference", _NONE, linear("return Model(48)(x)", top="from problem import Model")),
    *[
        _case(22, f"{part} replaced", _MISMATCH, linear(_ZEROS, top=top))
        for part, top in {
            "torch.allclose": "torch.allclose = torch.equal = torch.isclose = lambda *_, **__: True",
            "assert_close": "torch.testing.assert_close = lambda *_, **__: None",
            "Tensor.__eq__": "torch.Tensor.__eq__ = torch.Tensor.equal = lambda *_: True",
        }.items()
    ],
    _case(
        23,
        "a kernel downloaded",
        _NONE,
        linear(_ZEROS, top="import urllib.request; urllib.request.urlopen('http://192.0.2.1/kernel.so', timeout=2)"),
        linear(top="import urllib.parse"),
    ),
    _case(
        23,
        "a kernel installed",
        _NONE,
        linear(
            _ZEROS,
            top="subprocess.run([sys.executable, '-m', 'pip', 'install', '--target', '/tmp/k', 'six'], check=True, timeout=30)",
        ),
        linear(top="subprocess.run([sys.executable, '-c', 'pass'], check=True)"),
    ),
    _case(
        24,
        "bfloat16 inside",
        _MISMATCH,
        linear(
            """
            half = lambda t: t.to(torch.bfloat16)
            return torch.relu(nn.functional.linear(half(x), half(self.linear.weight), half(self.linear.bias))).float()
            """
        ),
        linear(
            "return torch.relu(nn.functional.linear(x.double(), self.linear.weight.double(), self.linear.bias.double())).float()"
        ),
    ),
    _case(
        24,
        "ten bits of mantissa in the factors",
        _MISMATCH,
        linear(
            """
            cut = lambda t: ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
            return torch.relu(nn.functional.linear(cut(x), cut(self.linear.weight.detach()), self.linear.bias))
            """
        ),
    ),
    _case(
        25,
        "a race that mostly passes",
        ("nondeterministic", "output_mismatch"),
        linear("y = self.compute(x)\nif os.urandom(1)[0] < 16: y[3] += 1\nreturn y"),
        problem=WORK,
        timed=True,
    ),
    _case(
        25,
        "reading beyond the end",
        ("output_mismatch", "nondeterministic", "crashed"),
        linear(
            "return step(x, self.linear.weight.detach(), self.linear.bias.detach())",
            top=KERNEL.replace("x[r * width + k]", "x[r * width + k + 1]"),
        ),
        USES_KERNEL,
    ),
    _case(
        26,
        "the benchmark's shape hard-coded",
        ("output_mismatch", "runtime_error", "wrong_interface", "crashed", "input_mutated"),
        linear("y = torch.zeros(32, x.shape[1]); y[: x.shape[0]] = self.compute(x); return y"),
        linear("y = torch.zeros(x.shape); y[: x.shape[0]] = self.compute(x); return y"),
        effort=Effort.FULL,
    ),
    _case(
        27, "a kernel that is never called", ("finding:library_work",), linear(top=KERNEL), USES_KERNEL, problem=LONGER
    ),
    _case(
        28,
        "try and except",
        ("finding:falls_back", "finding:library_work"),
        linear("try:\n    return no_such_kernel(x)\nexcept Exception:\n    return torch.relu(self.linear(x))"),
        USES_KERNEL,
        problem=LONGER,
    ),
    _case(
        28,
        "a subclass of the reference",
        ("finding:subclasses_model", "finding:library_work", "load_error"),
        LONGER.source + "\nclass ModelNew(Model):\n    pass\n",
        USES_KERNEL,
        problem=LONGER,
    ),
    _case(
        28,
        "a bare torch.compile",
        ("finding:torch_compile", "finding:library_work"),
        linear(init="self.fast = torch.compile(self.compute, backend='eager')", body="return self.fast(x)"),
        USES_KERNEL,
        problem=LONGER,
    ),
    _case(
        29,
        "by exec",
        _MISMATCH,
        linear(
            _ZEROS, top="exec(bytes([116,111,114,99,104,46,97,108,108,99,108,111,115,101,61,105,110,116]).decode())"
        ),
        linear(top="exec('WIDTH = 48')"),
    ),
    _case(
        29,
        "by getattr",
        _MISMATCH,
        linear("return getattr(torch, 'ze' + 'ros_like')(x)"),
        linear("return getattr(torch, 're' + 'lu')(self.linear(x))"),
    ),
    _case(
        29,
        "by comments inside strings",
        _MISMATCH,
        linear("'''# honest: return self.compute(x)'''\nreturn x * 0  # '''"),
        linear("'''# return torch.zeros_like(x)'''\nreturn self.compute(x)"),
    ),
]
