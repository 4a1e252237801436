"""Framing over a Unix socket: whole, in pieces, too long, with descriptors, too late."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time

import pytest

from kernelevo_evaluator.channel import (
    HEADER,
    MAXIMUM_DESCRIPTORS,
    AsyncChannel,
    Channel,
    ChannelClosed,
    ChannelTimeout,
    FrameInvalid,
    socket_pair,
)


@pytest.fixture
def pair():
    a, b = socket_pair()
    yield a, b
    a.close()
    b.close()


def soon():
    return time.monotonic() + 5


def frame(payload, count=0):
    return HEADER.pack(len(payload), count) + payload


@pytest.mark.parametrize("size", [0, 1, 4096, 3 << 20])
def test_round_trip(pair, size):
    sender, receiver = Channel(pair[0], 8 << 20), Channel(pair[1], 8 << 20)
    payload = os.urandom(size)
    thread = threading.Thread(target=sender.send, args=(payload,))
    thread.start()
    assert receiver.receive(soon()) == payload
    thread.join()


def test_frames_in_pieces_keep_their_borders(pair):
    receiver = Channel(pair[1], 100)
    data = frame(b"first") + frame(b"") + frame(b"third")

    def trickle():
        for byte in data:
            pair[0].send(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    assert [receiver.receive(soon()) for _ in range(3)] == [b"first", b"", b"third"]
    thread.join()


def test_too_long_is_refused_before_it_is_read(pair):
    pair[0].sendall(struct.pack(">IB", 0xFFFFFFFF, 0))
    with pytest.raises(FrameInvalid, match="at most 100"):
        Channel(pair[1], 100).receive(soon())


def test_announced_descriptors_are_refused(pair):
    pair[0].sendall(frame(b"x", 1))
    with pytest.raises(FrameInvalid):
        Channel(pair[1], 100).receive(soon())


def test_sent_descriptors_never_arrive(pair, count_descriptors):
    """An untrusted side that attaches descriptors to its frames gives the receiver none of them."""
    before = count_descriptors()
    for _ in range(20):
        socket.send_fds(pair[0], [frame(b"payload")], [0] * 16)
        assert Channel(pair[1], 100).receive(soon()) == b"payload"
    assert count_descriptors() == before


def test_descriptors_from_a_trusted_side(pair):
    read, write = os.pipe()
    Channel(pair[0], 100).send(b"here", (write,))
    payload, fds = Channel(pair[1], 100).receive_with_fds(soon())
    assert payload == b"here"
    os.write(fds[0], b"!")
    assert os.read(read, 1) == b"!"
    assert not os.get_inheritable(fds[0])
    for fd in (read, write, *fds):
        os.close(fd)


@pytest.mark.parametrize(("announced", "sent"), [(0, 2), (2, 1), (1, 0)])
def test_miscounted_descriptors_are_closed(pair, count_descriptors, announced, sent):
    before = count_descriptors()
    socket.send_fds(pair[0], [frame(b"x", announced)], [0] * sent)
    with pytest.raises(FrameInvalid):
        Channel(pair[1], 100).receive_with_fds(soon())
    assert count_descriptors() == before


def test_descriptors_of_a_broken_frame_are_closed(pair, count_descriptors):
    before = count_descriptors()
    socket.send_fds(pair[0], [frame(b"1234", 2)[:-1]], [0, 0])
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ChannelClosed):
        Channel(pair[1], 100).receive_with_fds(soon())
    assert count_descriptors() == before


def test_too_many_descriptors_are_not_sent(pair):
    with pytest.raises(ValueError, match="descriptors"):
        Channel(pair[0], 100).send(b"", [0] * (MAXIMUM_DESCRIPTORS + 1))


@pytest.mark.parametrize("part", [b"", b"\0\0", frame(b"hello")[:-1]])
def test_nothing_whole_in_time(pair, part):
    pair[0].sendall(part)
    with pytest.raises(ChannelTimeout):
        Channel(pair[1], 100).receive(time.monotonic() + 0.02)


def test_a_reader_that_stalls_does_not_hold_the_sender(pair):
    with pytest.raises(ChannelTimeout):
        Channel(pair[0], 100).send(bytes(64 << 20), deadline=time.monotonic() + 0.05)


@pytest.mark.parametrize("part", [b"", b"\0\0", frame(b"hello")[:-1]])
def test_the_other_side_is_gone(pair, part):
    pair[0].sendall(part)
    pair[0].close()
    with pytest.raises(ChannelClosed):
        Channel(pair[1], 100).receive(soon())


def test_sending_to_nobody(pair):
    pair[1].close()
    with pytest.raises(ChannelClosed):
        Channel(pair[0], 100).send(b"x")


# --- The event loop's side


async def test_both_kinds_speak_with_each_other(pair):
    there, here = AsyncChannel(pair[0], 8 << 20), Channel(pair[1], 8 << 20)
    payload = os.urandom(1 << 20)
    received = asyncio.create_task(asyncio.to_thread(here.receive_with_fds, soon()))
    await there.send(payload, (0,))
    data, fds = await received
    assert data == payload
    os.close(fds[0])
    sent = asyncio.create_task(asyncio.to_thread(here.send, payload))
    assert await there.receive() == payload
    await sent


async def test_the_loop_refuses_what_is_too_long_or_carries_descriptors(pair, count_descriptors):
    before = count_descriptors()
    socket.send_fds(pair[0], [frame(b"x" * 9)], [0, 0])
    there = AsyncChannel(pair[1], 10)
    assert await there.receive() == b"x" * 9
    assert count_descriptors() == before
    pair[0].sendall(frame(b"x" * 11))
    with pytest.raises(FrameInvalid):
        await there.receive()


async def test_the_loop_sees_the_end(pair):
    pair[0].sendall(b"\0\0\0")
    pair[0].close()
    with pytest.raises(ChannelClosed):
        await AsyncChannel(pair[1], 10).receive()
