"""``stepscope`` for the shells of a test: a small program asks the test's process, which starts a fork (torch_forks.py)."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torch_forks import ForkedPopen, shared_server

PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    text = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(asked, [len(text).to_bytes(4, "big")], [0, 1, 2])
    asked.sendall(text)
    sys.exit(int.from_bytes(asked.recv(4), "big"))
"""


@contextmanager
def forked_command(folder: Path) -> Iterator[None]:
    """``folder/stepscope`` is the command while the block runs."""
    address = f"\0{folder}"
    program = folder / "stepscope"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_run, args=(connection,), daemon=True).start()


def _run(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as rest:
        head, streams, _, _ = socket.recv_fds(connection, 4, 3)
        words, folder, environ = json.loads(rest.read(int.from_bytes(head, "big")))
        process = ForkedPopen(
            [sys.executable, "-m", "stepscope.cli", *words], server=shared_server(), env=environ, cwd=folder,
            stdin=streams[0], stdout=streams[1], stderr=streams[2],
        )  # fmt: skip
        for stream in streams:
            os.close(stream)
        code = process.wait()
        connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))
