"""`stepscope trace http://...`: read from a server on this machine that sends files once, from their start."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Here
from tests.trace_builder import build, write_job

pytestmark = pytest.mark.e2e
pytest.importorskip("aiohttp", reason="fsspec reads http with aiohttp, which is not installed")


class _Server(SimpleHTTPRequestHandler):
    def send_head(self):  # type: ignore[no-untyped-def]
        for status in (401, 403):
            if self.path.startswith(f"/{status}"):
                return self.send_error(status)
        return super().send_head()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    write_job(build(world=2, steps=3), tmp_path / "job")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Server, directory=str(tmp_path))) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_a_folder_is_listed_and_read_where_it_lies(fresh_cli: Cli, here: Here, server: str, tmp_path: Path) -> None:
    behind, near = fresh_cli("trace", f"{server}/job", "--json"), here("trace", str(tmp_path / "job"), "--json").json()
    assert behind.code == 0, behind.err
    document = behind.json()
    assert document["metrics"] == near["metrics"]
    assert document["collectives"] == near["collectives"]
    assert [each["file"] for each in document["ranks"]] == [f"{server}/job/rank-{rank}.json" for rank in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("command", ["trace", "diagnose"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("401/rank-0.json", "access denied"),
        ("403/rank-0.json", "access denied"),
        ("403", "access denied"),
        ("job/rank-9.json", "no such file or folder"),
    ],
)
def test_what_a_server_refuses_is_one_error(fresh_cli: Cli, server: str, command: str, path: str, said: str) -> None:
    done = fresh_cli(command, f"{server}/{path}")
    assert (done.code, done.err.splitlines()[0]) == (2, f"error: {server}/{path}: {said}")
    assert "Traceback" not in done.err


@pytest.mark.long
@pytest.mark.parametrize("option", [("--cache",), ("--merge", "x.json.gz")])
def test_nothing_that_keeps_a_copy_goes_with_a_url(fresh_cli: Cli, server: str, option: tuple[str, ...]) -> None:
    done = fresh_cli("trace", f"{server}/job", *option)
    assert done.code == 2
    assert done.err.startswith(f"error: {option[0]} does not go with {server}/job")
