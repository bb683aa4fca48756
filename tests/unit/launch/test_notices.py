"""Who is told of a job that goes wrong, what, and that nobody who is told can hold the job up."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tests.diaries import write_record

from stepscope.cli import monitor_run
from stepscope.cli.main import main
from stepscope.core.errors import UsageError
from stepscope.launch import notices
from stepscope.launch.notices import Notices, recipient, without_secrets
from stepscope.records.finding import JobVerdict
from stepscope.records.profile import Hang
from stepscope.store.layout import ProfileLayout

VERDICT = JobVerdict(kind="straggler", ranks=(3,), confidence="measured", headline="Straggler: rank 3 <late> & slow")
PYTHON = sys.executable

TRAIN = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.diaries import simulate
simulate(Path(sys.argv[1]), ranks=2, steps=60, seed=1, slow={{1: 1.5}})
while not Path(sys.argv[2]).exists():
    time.sleep(0.02)
sys.exit(int(sys.argv[3]))
"""


class Server(NamedTuple):
    """A webhook on loopback. got: path and JSON of each notice. silent: ``/silent`` answers once it is set. asked: a
    file that is there once ``/silent`` and ``/well`` were asked, and a verdict was told."""

    url: str
    asked: Path
    got: list[tuple[str, dict[str, Any]]]
    silent: threading.Event


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    got: list[tuple[str, dict[str, Any]]] = []
    silent, asked = threading.Event(), tmp_path / "asked"

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            if {"/silent", "/well"} <= {path for path, _ in got} and any(each["event"] == "verdict" for _, each in got):
                asked.touch()
            if self.path == "/silent":
                silent.wait()
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.02,))
        thread.start()
        yield Server(f"http://127.0.0.1:{serving.server_port}", asked, got, silent)
        silent.set()
        serving.shutdown()
        thread.join()


def told(folder: Path, *recipients: str, times: int = 1) -> list[str]:
    """Tell so many times, and return what is said of those that were not told."""
    told_of = Notices(ProfileLayout(write_record(folder)), [recipient(text) for text in recipients])
    (folder / ".stepscope").mkdir()
    for _ in range(times):
        told_of.send("verdict", VERDICT, VERDICT.headline)
    return list(told_of.close())


def noted(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ProfileLayout(folder).notices.read_text().splitlines()]


def test_a_url_and_a_command_get_the_verdict_and_slack_its_own_form(tmp_path: Path, server: Server) -> None:
    file = tmp_path / "got.json"
    command = f"{PYTHON} -c 'import sys; open(sys.argv[1], \"w\").write(sys.stdin.read())' {file}"
    assert told(tmp_path / "job", f"{server.url}/plain", f"slack:{server.url}/slack", command) == []
    got = dict(server.got)
    notice = got["/plain"]
    assert notice == json.loads(file.read_text())
    assert (notice["schema"], notice["event"], notice["job"]) == ("stepscope.notice/1", "verdict", "job")
    assert (notice["host"], notice["verdict"]["ranks"]) == (socket.gethostname(), [3])
    assert list(got["/slack"]) == ["text"]
    assert got["/slack"]["text"].endswith("rank 3 &lt;late&gt; &amp; slow")
    assert [note["failed"] for note in noted(tmp_path / "job")] == [None] * 3


@pytest.mark.parametrize("code", [0, 7])
def test_a_webhook_that_never_answers_holds_up_neither_the_job_nor_the_others(
    code: int, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job ends once both were asked; the one answers only after this test: whoever waits for it waits for ever."""
    monkeypatch.setattr(notices, "TIMEOUT_S", 1e6)
    monkeypatch.setattr(notices, "LAST_S", 3.0 if code else 0.2)
    monkeypatch.setattr("os.nice", lambda _: None)
    hangs = iter([("hang", Hang(ranks=(1,), waiting=(0,), silent_s=99.0, step=4))] if code else [])
    standing = SimpleNamespace(look=lambda: next(hangs, None), hang=None, stall=None)
    monkeypatch.setattr(monitor_run, "HangWatch", lambda *_: standing)
    script, folder = tmp_path / "train.py", tmp_path / "job"
    script.write_text(TRAIN.format(root=str(Path(__file__).parents[3])))
    command = [PYTHON, str(script), str(folder), str(server.asked), str(code)]
    recipients = [f"{server.url}/silent", f"{server.url}/well"]
    with pytest.raises(SystemExit) as ended:
        main(["run", "-o", str(folder), "--deep", "off", *(f"--notify={each}" for each in recipients), "--", *command])
    assert ended.value.code == code
    told_well = [(notice["event"], notice["verdict"]["kind"]) for path, notice in server.got if path == "/well"]
    events = [("hang", "hang"), ("verdict", "straggler"), ("end", "killed")] if code else [("verdict", "straggler")]
    assert told_well == events
    silent = [note["event"] for note in noted(folder) if note["failed"] is not None]
    assert silent == [event for event, _ in told_well]
    assert capsys.readouterr().err.count("! --notify") == 1
    assert str(server.url) not in (folder / "profile.json").read_text()


def test_who_cannot_be_told_is_named_once_and_noted_each_time(tmp_path: Path, server: Server) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}/x"
        fails = f"{PYTHON} -c 'import sys; sys.exit(\"no room\")'"
        said = told(tmp_path / "job", f"{server.url}/broken", closed, fails, times=2)
    assert len(said) == 3
    for part in ("500", "refused", "exit code 1: no room"):
        assert [part in line for line in said].count(True) == 1
    assert sum(note["failed"] is not None for note in noted(tmp_path / "job")) == len(noted(tmp_path / "job")) == 6


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "TIMEOUT_S", 1.0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    (line,) = told(tmp_path / "job", f"sh -c 'exec 3> {pipe}; sleep 600 & sleep 600'")
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b"", "nobody has the pipe open any more"
    os.close(reader)
    assert "killed" in line


def test_what_was_typed_is_kept_without_the_url_that_lets_others_write() -> None:
    secret = "slack:https://hooks.slack.com/services/T0/B0/XYZ"
    words = ("stepscope", "run", "--notify", secret, f"--notify={secret}", "--", "train")
    kept = without_secrets(words, [secret])
    assert kept[3:5] == ("slack:https://hooks.slack.com/...", "--notify=slack:https://hooks.slack.com/...")
    assert kept[:3] + kept[5:] == words[:3] + words[5:]


def test_a_command_may_name_a_url() -> None:
    posts = recipient("sh -c 'curl -d @- https://example.org'")
    assert (posts.kind, posts.shown) == ("command", "sh")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slack:",
        "slack:hooks.slack.com/x",
        "htps://example.org",
        "http://",
        "http://h:x/",
        "no-such-program -x",
        "'",
    ],
)
def test_what_can_tell_nobody_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        recipient(text)
