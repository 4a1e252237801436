"""Tells the referee when Triton compiles: the compiler runs in this process, and what it takes is a build's, not a call's."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from kernelevo_evaluator.messages.codec import encode
from kernelevo_evaluator.messages.runner import Compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelevo_evaluator.channel import Channel

_PLACES = ("triton", "triton.compiler", "triton.compiler.compiler")
_NAME_CHARACTERS = 200


def announce(channel: Channel, nonce: Callable[[], int]) -> None:
    """From now on each compilation is announced before it begins and when it has ended. Nothing happens without Triton.

    Only those of this process' main thread, which is in the middle of a command then: in between, nothing may be said on the
    channel, and a forked process that compiles has no part in it.

    Args:
        nonce: gives that of the command under way.
    """
    compiler = sys.modules.get("triton.compiler.compiler")
    if compiler is None:
        return
    original = compiler.compile
    owner = os.getpid()
    under_way = False

    @functools.wraps(original)
    def compile(src: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal under_way
        if under_way or threading.current_thread() is not threading.main_thread() or os.getpid() != owner:
            return original(src, *arguments, **options)
        under_way = True
        channel.send(encode(Compiling(nonce=nonce(), kernel=_name(src))))
        try:
            return original(src, *arguments, **options)
        finally:
            under_way = False
            channel.send(encode(Compiling(nonce=nonce())))

    for place in _PLACES:
        module = sys.modules.get(place)
        if getattr(module, "compile", None) is original:
            setattr(module, "compile", compile)  # noqa: B010 - a module of no known type


def _name(source: Any) -> str:
    """A kernel's name; of another source than a kernel its kind."""
    name = getattr(source, "name", None)
    return (name if isinstance(name, str) and name else type(source).__name__)[:_NAME_CHARACTERS]
