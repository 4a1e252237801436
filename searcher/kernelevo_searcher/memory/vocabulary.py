"""The only words that a bank may hold: techniques, recognised in ideas, and operators, recognised in references.

Recognising is all that is done with a text; what is kept is the word from here.
"""

from __future__ import annotations

import ast
import re
import warnings

__all__ = ["DTYPES", "OPERATORS", "TECHNIQUES", "operators_in", "techniques_in"]

_PATTERNS = {
    "fusion": r"\bfus(e|ed|es|ing|ion)\b|\bone (kernel|pass|launch)\b|\bsingle[- ](kernel|pass|launch)\b",
    "tiling": r"\btil(e|es|ed|ing)\b|\bblock(ed|ing)\b|\bBLOCK(_\w+)?\b",
    "cache blocking": r"\bL[123]\b|\bcache[- ]block|\bcache[- ](reuse|resident|friendly|local)",
    "shared memory": r"\bshared[- ]mem|\bsmem\b|\b__shared__\b",
    "bank conflicts avoided": r"\bbank[- ]conflict|\bswizzl",
    "registers": r"\bregister[- ]?(s|block|til|resident)?",
    "vector loads": r"\bfloat4\b|\b(wide|vectori[sz]ed|128[- ]bit|16[- ]byte) (load|store|access|memory)|\bvector (load|store)",
    "vector intrinsics": r"\bSIMD\b|\bAVX\w*\b|\b_mm\w+|\bintrinsics?\b|\bvectori[sz](e|ed|es|ing|ation)\b|\bNEON\b|\bFMA\b",
    "coalescing": r"\bcoalesc",
    "tensor cores": r"\btensor[- ]cores?\b|\bwmma\b|\bw?gmma\b|\bmma\b|\btl\.dot\b",
    "asynchronous copy": r"\bcp\.async\b|\bTMA\b|\basync(hronous)?[- ]cop",
    "software pipelining": r"\bpipelin|\bdouble[- ]buffer|\bmulti[- ]?stage|\bnum_stages\b",
    "prefetching": r"\bprefetch",
    "persistent grid": r"\bpersistent\b|\bgrid[- ]stride\b",
    "split reduction": r"\bsplit[- ]?k\b|\bsplit(s|ting)? (the )?reduction|\btwo[- ](stage|pass|phase) reduc",
    "warp reduction": r"\bwarp[- ](shuffle|reduc|level)|\b__shfl\w*|\bshuffle\b",
    "online reduction": r"\bonline\b|\bwelford\b|\bone[- ]pass\b|\bsingle[- ]pass\b",
    "several accumulators": r"\baccumulators?\b|\binstruction[- ]level parallel|\bILP\b",
    "loop unrolling": r"\bunroll",
    "loop order": r"\bloop[- ](order|interchange|reorder)|\breorder(s|ed|ing)? (the )?loops?",
    "threads": r"\bthreads?\b|\bOpenMP\b|\bparallel[_ ]for\b|\bmulti[- ]?thread|\bNUM_THREADS\b|\bTHREADS\b",
    "warps a block": r"\bnum_warps\b|\bwarps? (per|a|in each) ",
    "occupancy": r"\boccupancy\b|\blaunch[_ ]bounds\b",
    "optimisation level": r"(?<!\w)-O[0-3](?!\w)",
    "native instructions": r"-march=native\b|-mtune=native\b",
    "fast math": r"\bfast[- _]?math\b|-ffast-math\b|--use_fast_math\b|\b__expf\b",
    "approximation": r"\bapproximat|\bpolynomial\b|\bminimax\b|\blookup table\b",
    "lower precision": r"\bfp16\b|\bbf16\b|\bbfloat16\b|\bTF32\b|\b(half|lower|mixed)[- ]precision\b",
    "algebraic reformulation": r"\balgebra|\breformulat|\bfactor(s|ed|ing)? out\b|\bfold(s|ed|ing)?\b|\bclosed form\b",
    "precomputed weights": r"\bpre[- ]?(comput|pack|transpos)|\bpack(s|ed|ing)?\b|\bload_reference_state\b",
    "recomputation": r"\brecomput",
    "other layout": r"\blayout\b|\btranspos|\bchannels[_ ]last\b|\bcontiguous\b|\bpadd(ed|ing)\b|\balign(ed|ment)\b",
    "streaming stores": r"\bnon[- ]?temporal\b|\bstreaming store|\b_mm\w*_stream\w*|\bevict_\w+|\bcache (hint|modifier)",
    "fewer launches": r"\bfewer (kernel )?launch|\bCUDA graph|\blaunch overhead\b",
    "atomics": r"\batomic",
    "no temporaries": r"\btemporar(y|ies)\b|\bintermediate\b|\bin[- ]place\b|\bscratch\b|\ballocation",
    "no bounds checks": r"\bbounds? check|\bmask(s|ed|ing)?\b|\btail loop\b|\bdivisib",
    "cheaper instructions": r"\breciprocal|\brsqrt\b|\bdivisions?\b|\bbranch(less|es)?\b|\bstrength reduction\b|\bexp2f?\b",
    "library call": r"\bcuBLAS\b|\bcuDNN\b|\bMKL\b|\boneDNN\b|\bBLAS\b|\bCUTLASS\b",
}
TECHNIQUES = tuple(_PATTERNS)
"""What a lesson can be about, the most telling first where several are recognised."""
_COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _PATTERNS.items()}
_MOST = 3
"""Techniques of one idea: an idea that names everything says nothing."""

_SYNONYMS = {
    "matmul": "matmul mm bmm addmm baddbmm linear einsum addbmm dot mv tensordot",
    "convolution": "conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d",
    "attention": "scaleddotproductattention multiheadattention",
    "softmax": "softmax logsoftmax logsumexp",
    "normalisation": "layernorm groupnorm batchnorm1d batchnorm2d batchnorm3d instancenorm2d rmsnorm normalize batchnorm",
    "activation": "relu relu6 gelu silu swish sigmoid tanh leakyrelu elu selu hardtanh hardswish softplus softsign mish",
    "exponential": "exp log log1p expm1 exp2 log2 pow erf",
    "reduction": "sum mean prod max min amax amin argmax argmin std var norm any all",
    "scan": "cumsum cumprod cummax cummin logcumsumexp",
    "pooling": "maxpool1d maxpool2d maxpool3d avgpool1d avgpool2d avgpool3d adaptiveavgpool2d adaptivemaxpool2d",
    "loss": "crossentropy mseloss nllloss kldiv smoothl1loss hingeembeddingloss tripletmarginloss l1loss bceloss",
    "sorting": "sort topk argsort kthvalue median",
    "indexing": "gather scatter scatteradd indexselect take embedding indexadd maskedfill where onehot embeddingbag",
    "recurrence": "lstm gru rnn lstmcell grucell",
    "transposition": "transpose permute t movedim swapaxes",
    "joining": "cat stack concat",
    "triangular": "tril triu",
    "dropout": "dropout",
    "interpolation": "interpolate upsample gridsample",
}
OPERATORS = tuple(_SYNONYMS)
"""What a problem can be said to consist of."""
_OPERATOR_OF = {synonym: word for word, synonyms in _SYNONYMS.items() for synonym in synonyms.split()}

DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)


def techniques_in(idea: str) -> tuple[str, ...]:
    """Up to three techniques that a one-line idea names."""
    return tuple(name for name, pattern in _COMPILED.items() if pattern.search(idea))[:_MOST]


def operators_in(source: str) -> tuple[str, ...]:
    """The operators that a reference's source calls, in the order of `OPERATORS`; none where it is no Python. Never executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.add("matmul")
        elif isinstance(node, ast.Call):
            called = node.func
            name = (
                called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            )
            word = _OPERATOR_OF.get(name.lower().replace("_", ""))
            if word is not None:
                found.add(word)
    return tuple(word for word in OPERATORS if word in found)
