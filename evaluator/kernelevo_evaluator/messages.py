"""What referee, server and runner say to each other, and the checks that a message must pass.

Everything is MessagePack of tagged msgspec structs, so that a decoded message has the declared types or is refused. What a
runner sends is a claim of a process that may be hostile: `decode_reply` bounds its depth and `Layout.check` its geometry before
anybody computes with it. Every command carries a nonce that its reply must echo, so that a late or made-up reply belongs to
nothing.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

REPLY_LIMIT = 1 << 20
"""Longest message taken from a runner, in bytes, builds aside."""
BUILD_REQUEST_LIMIT = 8 << 20
"""Longest message taken from a runner while its module is being imported: it may hold sources to build."""
COMMAND_LIMIT = 64 << 20
"""Longest message a runner or a referee takes from its own server."""

ITEM_SIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes an element, for each dtype that may cross."""
FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})
PAGE = 4096
_MAXIMUM_TENSORS = 4096
_MAXIMUM_DEPTH = 16
_ALIGNMENT = 64
_MAXIMUM_SIZE = 1 << 48
"""Largest size and stride of a dimension, in elements: beyond any memory, and within what torch can count."""

# Claims end in a result that others store and show: what they may fill is bounded where they arrive.
_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Text = Annotated[str, msgspec.Meta(max_length=16384)]
_Line = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]


class MessageInvalid(Exception):
    """A message that is not what the protocol says."""


# --- Values that cross by shared memory


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One dense tensor inside a slot: `offset` and `nbytes` in bytes, `stride` in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class TensorLeaf(msgspec.Struct, frozen=True, tag="t"):
    """The tensor at this index of the layout."""

    index: int


class ConstantLeaf(msgspec.Struct, frozen=True, tag="c"):
    """A plain value."""

    value: bool | int | float | str | None


class ListNode(msgspec.Struct, frozen=True, tag="l"):
    """A list."""

    items: tuple[Node, ...]


class TupleNode(msgspec.Struct, frozen=True, tag="u"):
    """A tuple."""

    items: tuple[Node, ...]


class DictNode(msgspec.Struct, frozen=True, tag="d"):
    """A dict with string keys, in order."""

    keys: tuple[str, ...]
    items: tuple[Node, ...]


Node = TensorLeaf | ConstantLeaf | ListNode | TupleNode | DictNode


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the tensors of a nested value lie in one slot of `nbytes` bytes, a multiple of the page."""

    tree: Node
    tensors: tuple[TensorSpec, ...]
    nbytes: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors alone."""
        return sum(t.nbytes for t in self.tensors)

    def check(self) -> Layout:
        """Return itself if the geometry is sound.

        Raises:
            MessageInvalid: an unknown dtype, a size that does not follow from the shape, a tensor that is not placed right
                behind the one before, a stride that is not a permutation of the dense one, a slot of another size than its
                tensors need, or a tree that does not name every tensor once.
        """
        if len(self.tensors) > _MAXIMUM_TENSORS:
            raise MessageInvalid(f"{len(self.tensors)} tensors; at most {_MAXIMUM_TENSORS} are taken")
        end = 0
        for spec in self.tensors:
            size = ITEM_SIZE.get(spec.dtype)
            if size is None:
                raise MessageInvalid(f"dtype {spec.dtype[:40]!r} cannot cross; known are {', '.join(ITEM_SIZE)}")
            if len(spec.shape) != len(spec.stride) or len(spec.shape) > 32:
                raise MessageInvalid("a tensor's shape and stride do not fit each other")
            if not all(0 <= n <= _MAXIMUM_SIZE for n in (*spec.shape, *spec.stride)):
                raise MessageInvalid("a tensor's size or stride is out of bounds")
            if spec.nbytes != spec.numel * size or spec.offset != _round_up(end, _ALIGNMENT):
                raise MessageInvalid("a tensor's bytes do not follow from its shape")
            if spec.numel and not _is_dense(spec.shape, spec.stride):
                raise MessageInvalid("a tensor's stride is not dense")
            end = spec.offset + spec.nbytes
        if self.nbytes != max(PAGE, _round_up(end, PAGE)):
            raise MessageInvalid("a slot's size does not follow from its tensors")
        seen: list[int] = []
        _collect(self.tree, seen, 0)
        if sorted(seen) != list(range(len(self.tensors))):
            raise MessageInvalid("the tree does not name every tensor once")
        return self


def _round_up(number: int, step: int) -> int:
    return (number + step - 1) // step * step


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if step != expected:
            return False
        expected *= size
    return True


def _collect(node: Node, seen: list[int], depth: int) -> None:
    if depth > _MAXIMUM_DEPTH:
        raise MessageInvalid(f"values nested deeper than {_MAXIMUM_DEPTH} levels")
    if isinstance(node, TensorLeaf):
        seen.append(node.index)
    elif isinstance(node, DictNode):
        if len(node.keys) != len(node.items):
            raise MessageInvalid("a dict's keys and values differ in number")
        for item in node.items:
            _collect(item, seen, depth + 1)
    elif isinstance(node, ListNode | TupleNode):
        for item in node.items:
            _collect(item, seen, depth + 1)


# --- Commands to a runner


class LoadModule(msgspec.Struct, frozen=True, tag="load"):
    """Import a module from its source. `role` is "reference" or "candidate"."""

    nonce: int
    source: str
    role: str
    interpreter: bool = False


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
    """Reference only: draw inputs under `seed`; floating ones become `x * scale + shift`."""

    nonce: int
    seed: int
    scale: float = 1.0
    shift: float = 0.0


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
    output's tree is then a tuple of the model's own and one leaf for each of them.
    """

    nonce: int
    ring: int
    slots: int
    inputs: Layout
    outputs: Layout
    mutated: tuple[int, ...] = ()
    expected: Layout | None = None
    expected_slots: int = 0


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Call the model on these slots in this order and copy each result into its output slot."""

    nonce: int
    ring: int
    slots: tuple[int, ...]


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
    | RunExpected
    | CompileModel
    | BuildReply
)


# --- Replies of a runner: claims, all of them


class Ready(msgspec.Struct, frozen=True, tag="ready", forbid_unknown_fields=True):
    """The harness is up, torch imported."""

    torch: _Name


class Done(msgspec.Struct, frozen=True, tag="done", forbid_unknown_fields=True):
    """The command was carried out. `claimed_ns`: by the runner's own clock."""

    nonce: int
    claimed_ns: _Nanoseconds = 0
    note: _Text = ""


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


class Failed(msgspec.Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    """User code failed. `kind`: "syntax", "import", "construct", "interface", "runtime", "memory" or "unsupported"."""

    nonce: int
    kind: _Name
    error: _Name
    message: _Text
    traceback: _Text = ""
    line: _Line | None = None


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
    implicit_headers: bool = True
    python_module: bool = True
    error_handling: bool = True


Reply = Ready | Done | Constructed | Described | Failed | BuildRequest

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Command)
_reply_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Reply)


def encode(message: msgspec.Struct) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


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


# --- Between server and referee: both trusted


class AttachProblem(msgspec.Struct, frozen=True, tag="attach"):
    """Take a reference runner (one descriptor), load the problem into it and keep it warm under its digest.

    `policy` is a contract type as MessagePack. The result is empty, or an `Outcome` that says why it cannot be.
    """

    digest: str
    source: str
    policy: bytes
    seconds: float


class DropProblem(msgspec.Struct, frozen=True, tag="drop"):
    """Forget a warm problem."""

    digest: str


class AuditProblem(msgspec.Struct, frozen=True, tag="audit"):
    """Audit an attached problem and time its baselines. The result is a `ProblemReport`, or the `Outcome` of a failed one."""

    digest: str
    name: str
    seconds: float


class EvaluateCandidate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Check and time a loaded candidate (its runner's channel is the first descriptor; a baseline's the second)."""

    digest: str
    report: bytes
    limits: bytes
    effort: str
    baseline: str
    interpreter: bool
    skip_timing: bool
    bound_speedup: float | None = None


class HostReply(msgspec.Struct, frozen=True, tag="host_reply"):
    """The server's answer to a `HostCall`."""

    ok: bool
    payload: bytes = b""
    error: str = ""


class MachineFacts(msgspec.Struct, frozen=True):
    """What a referee measures once, when it starts. Rates in 1e9 bytes and 1e12 operations a second."""

    torch: str
    cache_bytes: int
    read_gb_per_s: float
    copy_gb_per_s: float
    float32_tflop_per_s: float


ToReferee = AttachProblem | DropProblem | AuditProblem | EvaluateCandidate | HostReply


class HostCall(msgspec.Struct, frozen=True, tag="host"):
    """Something only the server can do: freeze, thaw, kill, ended, fresh, progress. `runner` names whom."""

    what: str
    runner: str = ""
    text: str = ""
    stage: str = ""


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A job is done: its result as MessagePack, or the referee's own fault."""

    ok: bool
    payload: bytes = b""
    error: str = ""


FromReferee = HostCall | Finished

_to_referee: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToReferee)
_from_referee: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromReferee)


def decode_to_referee(data: bytes) -> ToReferee:
    """A message of the server, inside the referee."""
    message: ToReferee = _to_referee.decode(data)
    return message


def decode_from_referee(data: bytes) -> FromReferee:
    """A message of the referee, inside the server."""
    message: FromReferee = _from_referee.decode(data)
    return message
