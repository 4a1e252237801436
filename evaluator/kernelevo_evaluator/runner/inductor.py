"""TorchInductor's code for a reference, for one set of sizes: traced and generated, not compiled and not run.

The model is traced by `torch.export`, whose signature says which argument of the generated function is which weight or input, and
handed to Inductor as `torch.compile` would. Generation is cut short once the text is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class CannotGenerate(Exception):
    """Inductor's code for this model cannot become a module of its own; the message says why."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What Inductor wrote for one set of sizes."""

    wrapper: str
    """Its Python module, with the kernels in it."""
    arguments: tuple[str, ...]
    """For each argument of its `call`: an expression over `self` (the model) and `leaves` (the inputs, flat)."""
    result: str
    """The model's output, as an expression over `out`, the flat result of `call`."""
    constants: dict[str, torch.Tensor]
    """Module globals that the code needs."""
    key: tuple[Any, ...]
    """What the flat inputs must be: shape and dtype of each tensor, and every plain value."""
    compiler_flags: tuple[str, ...]
    """For C++: what chooses the vectors that the code is written for."""


class _Written(BaseException):
    """Carries the text past every handler of errors."""

    def __init__(self, text: str, constants: dict[str, torch.Tensor], outputs: int) -> None:
        super().__init__()
        self.text, self.constants, self.outputs = text, constants, outputs


def generate(model: torch.nn.Module, inputs: Sequence[Any]) -> Generated:
    """Inductor's code for `model(*inputs)`.

    Raises:
        CannotGenerate: it cannot be traced as one graph, or what comes out does not stand on its own.
    """
    import torch._inductor.compile_fx as compile_fx
    import torch.utils._pytree as pytree
    from torch._inductor import config, graph

    try:
        program = torch.export.export(model, tuple(inputs), strict=False)
    except Exception as error:
        raise CannotGenerate(f"the model cannot be traced as one graph: {_line(error)}") from error
    leaves = pytree.tree_leaves((tuple(inputs), {}))
    arguments, values, constants = _arguments(program, model, leaves)
    if any(spec.kind is not torch.export.graph_signature.OutputKind.USER_OUTPUT for spec in _outputs(program)):
        raise CannotGenerate("the model changes its own state in forward")
    original = graph.GraphLowering.codegen

    def codegen(lowering: Any) -> Any:
        wrapper, _ = original(lowering)
        raise _Written(wrapper.value, dict(lowering.constants), len(lowering.graph_outputs))

    options = {"force_disable_caches": True, "compile_threads": 1, "cpp.vec_isa_ok": True, "triton.cudagraphs": False}
    graph.GraphLowering.codegen = codegen
    try:
        with config.patch(options):
            flags = _vector_flags()
            compile_fx.compile_fx(program.graph_module, values)
    except _Written as written:
        text, made, outputs = written.text, written.constants, written.outputs
    except Exception as error:
        raise CannotGenerate(f"Inductor failed: {_line(error)}") from error
    else:
        raise CannotGenerate("Inductor had nothing to generate")
    finally:
        graph.GraphLowering.codegen = original
    result, used = _result(program, leaves)
    if outputs != used:
        raise CannotGenerate(f"the generated code returns {outputs} tensors where the graph has {used}")
    return Generated(
        wrapper=text,
        arguments=tuple(arguments),
        result=result,
        constants=constants | made,
        key=tuple(_key(leaf) for leaf in leaves),
        compiler_flags=flags,
    )


def _outputs(program: Any) -> Any:
    return program.graph_signature.output_specs


def _arguments(
    program: Any, model: torch.nn.Module, leaves: Sequence[Any]
) -> tuple[list[str], list[Any], dict[str, torch.Tensor]]:
    """The expression and the value of each of the graph's inputs, and the constants among them."""
    from torch.export.graph_signature import InputKind, TensorArgument

    attributes: dict[int, str] = {}
    for module_name, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                attributes[id(value)] = _path(f"{module_name}.{name}" if module_name else name)
    expressions: list[str] = []
    values: list[Any] = []
    constants: dict[str, torch.Tensor] = {}
    place = 0
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            expressions.append(f"leaves[{place}]")
            values.append(leaves[place])
            place += 1
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            expressions.append(_path(spec.target))
            value = program.state_dict.get(spec.target)
            values.append(program.constants[spec.target] if value is None else value)
        elif spec.kind is InputKind.CONSTANT_TENSOR and isinstance(spec.arg, TensorArgument):
            value = program.constants[spec.target]
            values.append(value)
            if id(value) in attributes:
                expressions.append(attributes[id(value)])
            else:
                name = f"_lifted_{len(constants)}"
                constants[name] = value
                expressions.append(name)
        else:
            raise CannotGenerate(f"the graph needs a {spec.kind.name.lower()}, which is no tensor")
    return expressions, values, constants


def _path(name: str) -> str:
    """`layers.0.weight` as an expression over `self`."""
    return "self" + "".join(f".{part}" if part.isidentifier() else f"._modules[{part!r}]" for part in name.split("."))


def _result(program: Any, leaves: Sequence[Any]) -> tuple[str, int]:
    """The output's expression over the flat result of the generated function, and how many tensors that has."""
    import torch.utils._pytree as pytree
    from torch.export.graph_signature import ConstantArgument, TensorArgument

    parts: list[str] = []
    used = 0
    for spec in _outputs(program):
        if isinstance(spec.arg, TensorArgument):
            parts.append(f"out[{used}]")
            used += 1
        elif isinstance(spec.arg, ConstantArgument):
            parts.append(repr(spec.arg.value))
            # A plain value of the output is an output of the graph too, and none of the code's.
        else:
            raise CannotGenerate("the model returns something that is neither a tensor nor a plain value")
    tree = pytree.tree_unflatten([_Expression(part) for part in parts], program.call_spec.out_spec)
    return _text(tree), used


class _Expression:
    def __init__(self, text: str) -> None:
        self.text = text


def _text(tree: Any) -> str:
    if isinstance(tree, _Expression):
        return tree.text
    if tree is None:
        return "None"
    if type(tree) is list:
        return f"[{', '.join(_text(item) for item in tree)}]"
    if isinstance(tree, tuple):
        items = [_text(item) for item in tree]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {_text(item)}" for key, item in tree.items()) + "}"
    raise CannotGenerate(f"the model returns a {type(tree).__name__}")


def _key(leaf: Any) -> Any:
    return (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def _vector_flags() -> tuple[str, ...]:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    isa = pick_vec_isa()
    if not isa:
        return ()
    macros = isa.build_macro()
    names = [macro.removeprefix("CPU_CAPABILITY_") for macro in macros if macro.startswith("CPU_CAPABILITY_")]
    return (*(f"-DCPU_CAPABILITY={name}" for name in names), *(f"-D{macro}" for macro in macros))


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
