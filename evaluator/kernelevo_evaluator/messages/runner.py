"""Commands to a runner, and its replies.

What a runner sends is a claim of a process that may be hostile: `decode_reply` bounds its depth, its texts and its geometry
before anybody computes with it. Every command carries a nonce that its reply must echo, so that a late or made-up reply belongs
to nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from kernelevo_evaluator.messages.codec import MessageInvalid
from kernelevo_evaluator.messages.layout import Layout  # noqa: TC001 - msgspec resolves the fields' types at run time

MOST_TRACED = 128
"""Most kernels that a trace tells of."""
MOST_KERNELS = 64
"""Most compiled kernels that a runner describes."""

# Claims end in a result that others store and show: what they may fill is bounded where they arrive.
_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Text = Annotated[str, msgspec.Meta(max_length=16384)]
_Source = Annotated[str, msgspec.Meta(max_length=1 << 19)]
_Line = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Places = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)], ...], msgspec.Meta(max_length=1 << 15)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
_Microseconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]


# --- Commands to a runner


class LoadModule(msgspec.Struct, frozen=True, tag="load"):
    """Import a module from its source. `role` is "reference" or "candidate"; `math` the problem's policy, "ieee" or "tf32"."""

    nonce: int
    source: str
    role: str
    interpreter: bool = False
    math: str = "ieee"


class Construct(msgspec.Struct, frozen=True, tag="construct"):
    """Build the model. The reference draws its own init inputs under `seed`; a candidate gets them (`init`, one descriptor).

    `sizes` overrides module constants of the problem (one of its declared shapes).
    """

    nonce: int
    dtype: str
    seed: int
    sizes: dict[str, int] | None = None
    init: Layout | None = None


class StoreWeights(msgspec.Struct, frozen=True, tag="store_weights"):
    """Copy the model's state into the descriptor, by the layout of `Constructed`."""

    nonce: int


class LoadWeights(msgspec.Struct, frozen=True, tag="load_weights"):
    """Copy the reference's state from the descriptor into the model, where names and shapes match."""

    nonce: int
    names: tuple[str, ...]
    layout: Layout


class MakeInputs(msgspec.Struct, frozen=True, tag="make_inputs"):
    """Reference only: draw inputs under `seed`; floating ones become `x * scale + shift`.

    `vary_from`: by the problem's own `vary`, from the inputs of this seed; "unsupported" where it has none.
    """

    nonce: int
    seed: int
    scale: float = 1.0
    shift: float = 0.0
    vary_from: int | None = None


class StoreInputs(msgspec.Struct, frozen=True, tag="store_inputs"):
    """Reference only: copy the inputs last made into a slot."""

    nonce: int
    ring: int
    slot: int


class DescribeOutputs(msgspec.Struct, frozen=True, tag="describe"):
    """Reference only: call the model on the inputs last made and say what comes out."""

    nonce: int
    precision: str
    mutated: tuple[int, ...] = ()


class MapRing(msgspec.Struct, frozen=True, tag="map"):
    """Map a ring: descriptors are inputs, outputs and, for a reference, expected outputs (`expected_slots` of them).

    `mutated` are indices of input tensors whose content after the call counts as further outputs: the
    output's tree is then a tuple of the model's own and one leaf for each of them. With `arena_bytes` the last descriptor is
    device memory from which the model's outputs are to be allocated: they are not copied, and `Done.places` says where they lie.
    """

    nonce: int
    ring: int
    slots: int
    inputs: Layout
    outputs: Layout
    mutated: tuple[int, ...] = ()
    expected: Layout | None = None
    expected_slots: int = 0
    arena_bytes: int = 0


class CloseRing(msgspec.Struct, frozen=True, tag="close_ring"):
    """Give a ring's memory back."""

    nonce: int
    ring: int


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Call the model on these slots in this order and copy each result into its output slot."""

    nonce: int
    ring: int
    slots: tuple[int, ...]


class Replay(msgspec.Struct, frozen=True, tag="replay"):
    """Replay the graph that was captured of as many calls. Its outputs lie where its capture said."""

    nonce: int
    ring: int
    calls: int


class OpenDevice(msgspec.Struct, frozen=True, tag="open_device"):
    """Open the device and load what the first kernels need; the command that a spare waits for."""

    nonce: int


class CaptureCalls(msgspec.Struct, frozen=True, tag="capture"):
    """Capture calls on the ring's first slots in a CUDA graph. The ring has an arena."""

    nonce: int
    ring: int
    calls: int


class TraceCalls(msgspec.Struct, frozen=True, tag="trace"):
    """Call the model on a slot of a ring and say which kernels or operators ran."""

    nonce: int
    ring: int
    slot: int


class CountOperations(msgspec.Struct, frozen=True, tag="count_operations"):
    """Reference only: call the model on a slot of a ring and count the operations of its products."""

    nonce: int
    ring: int
    slot: int


class CallAlone(msgspec.Struct, frozen=True, tag="call_alone"):
    """Call the model once for a tool that watches the process: on copies of a slot's inputs, each in an allocation of its own,
    between the marks that tell a profiler where to look."""

    nonce: int
    ring: int
    slot: int


class DescribeKernels(msgspec.Struct, frozen=True, tag="describe_kernels"):
    """Say what the kernels that Triton compiled here use on the device."""

    nonce: int


class RunExpected(msgspec.Struct, frozen=True, tag="run_expected"):
    """Reference only: compute one slot's outputs at `precision` into an expected slot."""

    nonce: int
    ring: int
    slot: int
    into: int
    precision: str


class CompileModel(msgspec.Struct, frozen=True, tag="compile_model"):
    """Reference only: wrap the model in torch.compile; the next calls compile it."""

    nonce: int


class WriteSeed(msgspec.Struct, frozen=True, tag="write_seed"):
    """Reference only, in a runner that serves nothing else: write a candidate out of what Inductor generates for the model.

    `shapes`: the problem's declared ones; the candidate is made for its own sizes and for each of these.
    """

    nonce: int
    source: str
    dtype: str
    shapes: tuple[dict[str, int], ...] = ()


class BuildReply(msgspec.Struct, frozen=True, tag="built"):
    """The answer to a runner's `BuildRequest`: one descriptor with the shared object, or the compiler's log."""

    nonce: int
    ok: bool
    log: str = ""


Command = (
    LoadModule
    | Construct
    | StoreWeights
    | LoadWeights
    | MakeInputs
    | StoreInputs
    | DescribeOutputs
    | MapRing
    | Run
    | CaptureCalls
    | Replay
    | OpenDevice
    | CloseRing
    | TraceCalls
    | CountOperations
    | CallAlone
    | DescribeKernels
    | RunExpected
    | CompileModel
    | WriteSeed
    | BuildReply
)


# --- Replies of a runner: claims, all of them


class Ready(msgspec.Struct, frozen=True, tag="ready", forbid_unknown_fields=True):
    """The harness is up, torch imported."""

    torch: _Name


class Done(msgspec.Struct, frozen=True, tag="done", forbid_unknown_fields=True):
    """The command was carried out. `claimed_ns`: by the runner's own clock.

    `places`: of a run over a ring with an arena, and of a capture, where each output of each call lies there, in bytes.
    """

    nonce: int
    claimed_ns: _Nanoseconds = 0
    note: _Text = ""
    places: _Places = ()


class Constructed(msgspec.Struct, frozen=True, tag="constructed", forbid_unknown_fields=True):
    """The model stands: its init inputs and its state (both of a reference only). `parameters`: what of the state is trained."""

    nonce: int
    init: Layout | None
    names: tuple[str, ...]
    parameters: tuple[bool, ...]
    weights: Layout


class Described(msgspec.Struct, frozen=True, tag="described", forbid_unknown_fields=True):
    """The layout of the inputs just made, or of the outputs."""

    nonce: int
    layout: Layout


class TracedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel on a GPU, or an operator of torch on a processor: its launches in a call, and their microseconds in all."""

    name: _Name
    us: _Microseconds
    count: _Line


class Traced(msgspec.Struct, frozen=True, tag="traced", forbid_unknown_fields=True):
    """What ran in a call, the longest first, and what the call took by the runner's own clock."""

    nonce: int
    wall_us: _Microseconds
    parts: Annotated[tuple[TracedPart, ...], msgspec.Meta(max_length=MOST_TRACED)]


class Counted(msgspec.Struct, frozen=True, tag="counted", forbid_unknown_fields=True):
    """Operations of a call's matrix products, convolutions and attention; a multiply-add is two."""

    nonce: int
    operations: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class CompiledKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel that Triton compiled, in one of its variants. Counts are of a thread, bytes of shared memory of a block."""

    name: _Name
    digest: _Name
    nbytes: _Bytes
    registers: _Line | None
    shared_memory_bytes: _Bytes
    spill_bytes: _Bytes | None


class Kernels(msgspec.Struct, frozen=True, tag="kernels", forbid_unknown_fields=True):
    """What Triton compiled in this process, in the order of its names."""

    nonce: int
    kernels: Annotated[tuple[CompiledKernel, ...], msgspec.Meta(max_length=MOST_KERNELS)]


class Compiling(msgspec.Struct, frozen=True, tag="compiling", forbid_unknown_fields=True):
    """Before an answer: a kernel's compilation begins, or, with no name, has ended."""

    nonce: int
    kernel: _Name = ""


LimitReached = Literal["", "file_size", "open_files", "processes", "temporary_files"]
"""A limit of the sandbox, by the value of its `LimitKind`; empty for none."""


class Failed(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """User code failed. `kind`: "syntax", "import", "construct", "interface", "runtime", "memory" or "unsupported".

    `limit`: which limit of the sandbox it ran into, by the error's own number.
    """

    nonce: int
    kind: _Name
    error: _Name
    message: _Text
    traceback: _Text = ""
    line: _Line | None = None
    limit: LimitReached = ""


class SeedWritten(msgspec.Struct, frozen=True, tag="seed", forbid_unknown_fields=True):
    """The candidate's module, or why there is none."""

    nonce: int
    source: _Source
    reason: _Text = ""


class BuildRequest(msgspec.Struct, frozen=True, tag="build", forbid_unknown_fields=True):
    """`load_inline` was called: its arguments, as far as a build depends on them."""

    nonce: int
    name: str
    cpp_sources: tuple[str, ...]
    cuda_sources: tuple[str, ...] = ()
    functions: dict[str, str] | None = None
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()
    with_cuda: bool = False
    implicit_headers: bool = True
    python_module: bool = True
    error_handling: bool = True


Reply = (
    Ready
    | Done
    | Constructed
    | Described
    | Traced
    | Counted
    | Kernels
    | Failed
    | SeedWritten
    | BuildRequest
    | Compiling
)

_command_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Command)
_reply_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Reply)


def decode_command(data: bytes) -> Command:
    """A command, inside a runner."""
    command: Command = _command_decoder.decode(data)
    return command


def decode_reply(data: bytes) -> Reply:
    """A reply of a runner.

    Raises:
        MessageInvalid: anything that is not a well-formed reply of sound geometry.
    """
    try:
        reply: Reply = _reply_decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise MessageInvalid(f"not a reply of the protocol: {str(error)[:200]}") from error
    if isinstance(reply, Constructed):
        reply.weights.check()
        if reply.init is not None:
            reply.init.check()
        if not len(reply.names) == len(reply.parameters) == len(reply.weights.tensors):
            raise MessageInvalid("weights and their names differ in number")
    elif isinstance(reply, Described):
        reply.layout.check()
    return reply
