"""A worker's process: its messages, and how long they are waited for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from fuzz_attn.workers.worker_process import WorkerProcess

ANSWERS = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
while (message := connection.recv_bytes()) != b'"end"':
    if message != b'"silence"':
        connection.send_bytes(message)
connection.send_bytes(b'"last"')
"""


class Message(msgspec.Struct, frozen=True, tag=True):
    """A message with no more than its type; the child sends back whatever it gets."""


@pytest.fixture
def process() -> Iterator[WorkerProcess[object]]:
    process = WorkerProcess((sys.executable, "-c", ANSWERS), msgspec.json.Decoder(object))
    yield process
    process.end()


def test_a_message_is_received_before_the_limit(process: WorkerProcess[object]) -> None:
    process.send(Message())
    assert process.receive(time.monotonic() + 60) == {"type": "Message"}


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.05])
def test_a_limit_without_a_message_raises(process: WorkerProcess[object], seconds: float) -> None:
    process.connection.send_bytes(b'"silence"')
    with pytest.raises(TimeoutError):
        process.receive(time.monotonic() + seconds)


def test_the_last_message_of_a_process_is_received_and_then_its_end(process: WorkerProcess[object]) -> None:
    process.connection.send_bytes(b'"end"')
    assert process.exit_code() == 0
    assert [process.receive(time.monotonic() + 60) for _ in range(2)] == ["last", None]


def test_nothing_is_received_from_a_closed_connection(process: WorkerProcess[object]) -> None:
    process.connection.close()
    others = os.pipe()  # has the number of the closed connection
    try:
        assert process.receive(time.monotonic() + 0.1) is None
    finally:
        for each in others:
            os.close(each)
