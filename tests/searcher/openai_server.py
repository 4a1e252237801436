"""A real HTTP server on loopback that speaks chat completions and the responses protocol, from a script.

It answers what the script says, in order, and records what it was asked. Beside whole replies it can stream, be slow,
refuse, be busy, break off, and answer garbage.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Asked", "OpenAIServer", "Reply", "serve"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One scripted answer. The defaults are a whole reply with its usage."""

    content: Any = "ok"
    finish_reason: str = "stop"
    refusal: str | None = None
    reasoning: str | None = None
    prompt_tokens: int = 100
    completion_tokens: int = 50
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    report_usage: bool = True
    status: int = 200
    """Other than 200: an error with `error_message`, no completion."""
    error_message: str = "scripted failure"
    error_code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Before the first byte."""
    drop: bool = False
    """Close the connection without an answer."""
    drop_after_characters: int | None = None
    """Streaming only: break off after so many characters of content."""
    raw_body: str | None = None
    """Sent as it is, with status `status`."""


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]
    time: float


class OpenAIServer:
    """The server's state: its script, what it was asked, and what it charged."""

    def __init__(
        self, replies: Sequence[Reply | Callable[[Asked], Reply]], api_key: str | None, repeat_last: bool
    ) -> None:
        self._replies = list(replies)
        self._repeat_last = repeat_last
        self.api_key = api_key
        self.asked: list[Asked] = []
        self.charged_tokens = 0
        """Of every reply that was written out in full or in part."""
        self._lock = threading.Lock()
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *replies: Reply | Callable[[Asked], Reply]) -> None:
        """Add to the script."""
        with self._lock:
            self._replies.extend(replies)

    def next_reply(self, asked: Asked) -> Reply:
        with self._lock:
            self.asked.append(asked)
            if not self._replies:
                return Reply(status=500, error_message="the script is over")
            entry = self._replies[0] if self._repeat_last and len(self._replies) == 1 else self._replies.pop(0)
        return entry(asked) if callable(entry) else entry

    def charge(self, reply: Reply) -> None:
        with self._lock:
            self.charged_tokens += reply.prompt_tokens + reply.completion_tokens


_RESET_ON_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def state(self) -> OpenAIServer:
        return cast("_Server", self.server).state

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `asked`, not the terminal."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        asked = Asked(
            self.path, {name.lower(): value for name, value in self.headers.items()}, json.loads(body), time.monotonic()
        )
        if self.path not in {"/v1/chat/completions", "/v1/responses"}:
            self._error(Reply(status=404, error_message=f"no such path: {self.path}"))
            return
        key = self.state.api_key
        if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
            got = self.headers.get("Authorization", "").removeprefix("Bearer ")
            self.state.asked.append(asked)
            # As real endpoints do: the key that was sent stands in the message.
            self._error(
                Reply(status=401, error_message=f"Incorrect API key provided: {got}.", error_code="invalid_api_key")
            )
            return
        reply = self.state.next_reply(asked)
        try:
            if reply.delay_s:
                time.sleep(reply.delay_s)
            if reply.drop:
                self._reset()
            elif reply.raw_body is not None:
                self._send(reply.status, reply.raw_body, reply.headers)
            elif reply.status != 200:
                self._error(reply)
            elif self.path == "/v1/responses":
                self._respond(reply, asked)
            elif asked.body.get("stream"):
                self._stream(reply, asked)
            else:
                self._complete(reply, asked)
        except (BrokenPipeError, ConnectionError):
            self.close_connection = True

    def _usage(self, reply: Reply) -> dict[str, Any]:
        return {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
            "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
            "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        }

    def _complete(self, reply: Reply, asked: Asked) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": reply.refusal}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        payload: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": asked.body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}],
        }
        if reply.report_usage:
            payload["usage"] = self._usage(reply)
        self.state.charge(reply)
        self._send(200, json.dumps(payload), reply.headers)

    def _respond(self, reply: Reply, asked: Asked) -> None:
        self.state.charge(reply)
        final = response_of(reply, asked)
        if not asked.body.get("stream"):
            self._send(200, json.dumps(final), reply.headers)
            return
        self._begin_stream()
        self._event("response.created", response={**final, "status": "in_progress", "output": [], "usage": None})
        content = str(reply.content or "")
        for at in range(0, len(content), 16):
            if reply.drop_after_characters is not None and at >= reply.drop_after_characters:
                self._reset()
                return
            self._event("response.output_text.delta", delta=content[at : at + 16], item_id="i", output_index=0)
        if reply.refusal:
            self._event("response.refusal.delta", delta=reply.refusal, item_id="i", output_index=0)
        self._event(f"response.{final['status']}", response=final)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, kind: str, **fields: Any) -> None:
        self._write_chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _stream(self, reply: Reply, asked: Asked) -> None:
        self.state.charge(reply)
        self._begin_stream()
        content = str(reply.content)
        sent = 0
        for at in range(0, len(content), 16):
            if reply.drop_after_characters is not None and sent >= reply.drop_after_characters:
                self._reset()
                return
            part = content[at : at + 16]
            self._chunk(asked, [{"index": 0, "delta": {"content": part}, "finish_reason": None}])
            sent += len(part)
        self._chunk(asked, [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}])
        if reply.report_usage and asked.body.get("stream_options", {}).get("include_usage"):
            self._chunk(asked, [], self._usage(reply))
        self._write_chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, asked: Asked, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> None:
        payload = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": asked.body["model"],
            "choices": choices,
            "usage": usage,
        }
        self._write_chunk(f"data: {json.dumps(payload)}\n\n".encode())

    def _write_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _error(self, reply: Reply) -> None:
        error = {"message": reply.error_message, "type": "error", "param": None, "code": reply.error_code}
        self._send(reply.status, json.dumps({"error": error}), reply.headers)

    def _send(self, status: int, body: str, headers: Mapping[str, str]) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        """Reset rather than close: what a load balancer does to a connection it gives up."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.close_connection = True


def response_of(reply: Reply, asked: Asked) -> dict[str, Any]:
    """A scripted reply as the responses protocol has it."""
    output: list[dict[str, Any]] = []
    if reply.reasoning is not None:
        output.append({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": reply.reasoning}]})
    content = [{"type": "refusal", "refusal": reply.refusal}] if reply.refusal else []
    if reply.content:
        content.append({"type": "output_text", "text": reply.content, "annotations": []})
    if content:
        output.append({"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": content})
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.finish_reason)
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": asked.body["model"],
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }
        if reply.report_usage
        else None,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, state: OpenAIServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = state

    def shutdown_request(self, request: Any) -> None:
        # Without the polite shutdown of the base class, so that a reset is one.
        self.close_request(request)


@contextmanager
def serve(
    *replies: Reply | Callable[[Asked], Reply], api_key: str | None = None, repeat_last: bool = False
) -> Iterator[OpenAIServer]:
    """A server with this script, until the block ends. `repeat_last` goes on with the last entry for ever."""
    state = OpenAIServer(replies, api_key, repeat_last)
    server = _Server(state)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
