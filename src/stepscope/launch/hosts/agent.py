"""``python -m stepscope.launch.hosts.agent``: what ``--hosts`` starts on each host.

It answers questions on its own input and output: facts of the host, its clock, whether it reaches another host; and it
runs a group's ranks. It ends, with everything that it started, when its input does: the command is gone, or ssh is.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from typing import Any, BinaryIO

from stepscope import __version__
from stepscope.core.errors import StepscopeError
from stepscope.launch.hosts import messages
from stepscope.launch.hosts.messages import HostMessage
from stepscope.launch.hosts.peers import Listener, measure_peer, try_addresses
from stepscope.launch.ports import free_port


def serve(read: BinaryIO, write: BinaryIO, *, ranks: bool = False) -> int:
    """Answer until ``read`` ends. ranks: a question may start some, which ends the conversation."""
    write.write(messages.MARK)
    messages.send(
        write, "hello", version=__version__, python=platform.python_version(), executable=sys.executable,
        host=socket.gethostname(),
    )  # fmt: skip
    listener: Listener | None = None
    try:
        while (question := messages.receive(read)) is not None:
            if question.kind == "ranks" and ranks:
                from stepscope.launch.hosts.remote_ranks import run_ranks

                return run_ranks(question, read, write)
            if question.kind == "listen":
                listener = listener or Listener()
                messages.send(write, "listening", port=listener.port, token=listener.token)
                continue
            try:
                fields, body = answer(question)
            except StepscopeError as error:
                messages.send(write, "failed", what=error.what, why=error.why, fix=error.fix)
            else:
                messages.send(write, question.kind, body, **fields)
    finally:
        if listener is not None:
            listener.close()
    return 0


def answer(question: HostMessage) -> tuple[dict[str, Any], bytes]:
    """Return the fields and the body of the answer to a question."""
    asked = question.fields
    if question.kind == "clock":
        return {"time_ns": time.time_ns()}, b""
    if question.kind == "port":
        return {"port": free_port()}, b""
    if question.kind == "try":
        return {"found": try_addresses(asked["addresses"], asked["port"], asked["token"])}, b""
    if question.kind == "measure":
        return {
            "found": measure_peer(
                asked["address"], asked["port"], asked["token"], trips=asked["trips"], size_bytes=asked["size_bytes"]
            )
        }, b""
    if question.kind == "facts":
        from stepscope.machine.collect import collect
        from stepscope.records.codec import encode

        return {}, encode(collect(torch_timeout_s=asked["torch_timeout_s"], remember=True))
    raise StepscopeError(f"the agent has no answer to {question.kind!r}")


def main() -> int:
    """Serve on standard input and output, which nothing else may read or write from then on."""
    read, write = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        return serve(read, write, ranks=True)
    except (BrokenPipeError, ConnectionError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
