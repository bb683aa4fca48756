"""``trace --open``: the file is fetched as ui.perfetto.dev fetches it, and the link names what is in it."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests import browser

from stepscope.cli import perfetto
from stepscope.cli.commands.trace import COMMAND, Trace
from stepscope.core.errors import CheckFailed, MissingError, UsageError
from stepscope.examples.jobs import EXAMPLES

Page = Callable[[str], Any]

POLICY = "connect-src 'self' http://127.0.0.1:{port} ws://127.0.0.1:{port} blob: data:"
"""Of ui.perfetto.dev, where the port is 9001."""

FETCH = "async url => { try { return (await (await fetch(url)).blob()).size } catch (error) { return error.name } }"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs") / "slow rank"
    EXAMPLES["straggler"].write(folder)
    return folder


@pytest.fixture(autouse=True)
def free_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(perfetto, "PORT", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, whatever handles it after commands of other tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Page], dict[str, Any]]]:
    """A browser: what is given does there, with the link, what the page would; its result is ``answer``."""
    threads: list[threading.Thread] = []

    class Result(dict[str, Any]):
        def __missing__(self, key: str) -> Any:  # the command may end before the page is done with its answer
            threads[0].join(60)
            return dict(self)[key]

    result = Result()

    def use(page: Page) -> dict[str, Any]:
        def work(link: str) -> None:
            try:
                result["answer"] = page(link)
            finally:
                if "answer" not in result:
                    os.kill(os.getpid(), signal.SIGINT)

        def start(link: str) -> bool:
            result["link"] = link
            threads.append(threading.Thread(target=work, args=(link,), daemon=True))
            threads[0].start()
            return True

        monkeypatch.setenv("DISPLAY", ":0")
        monkeypatch.setattr("webbrowser.open", start)
        return result

    yield use
    for thread in threads:
        thread.join(20)


def parameters(link: str) -> dict[str, str]:
    assert link.startswith("https://ui.perfetto.dev/#!/?")
    return {name: values[0] for name, values in parse_qs(urlsplit(link).fragment.partition("?")[2]).items()}


def asked(url: str, method: str = "GET") -> tuple[int, str | None, bytes]:
    """Code, who may read the answer, and the answer."""
    request = urllib.request.Request(url, method=method, headers={"Origin": "https://ui.perfetto.dev"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Access-Control-Allow-Origin"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Access-Control-Allow-Origin"], error.read()


def fetched(link: str) -> list[Any]:
    """What the page does: it looks for a trace processor, asks whether it may fetch, and fetches."""
    url = parameters(link)["url"]
    root = url.rsplit("/", 2)[0]
    return [asked(f"{root}/status", "POST"), asked(f"{root}/other"), asked(url, "OPTIONS"), asked(url)]


def events_of(packed: bytes) -> list[dict[str, Any]]:
    return [e for e in json.loads(gzip.decompress(packed))["traceEvents"] if e.get("ph") == "X"]


def ns(event: dict[str, Any], key: str) -> int:
    return round(float(event[key]) * 1000)


def test_the_page_fetches_once_and_finds_what_the_link_names(
    job: Path, opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened(fetched)
    assert COMMAND.run(Trace(paths=(str(job),), open_=True)) == 0
    status, other, preflight, (code, reader, packed) = page["answer"]
    assert (status[0], other[0], preflight[:2]) == (501, 404, (204, "https://ui.perfetto.dev"))
    assert (code, reader) == (200, "https://ui.perfetto.dev")
    place = parameters(page["link"])
    assert page["link"] in capsys.readouterr().out
    (event,) = [
        e
        for e in events_of(packed)
        if (ns(e, "ts"), ns(e, "dur")) == (int(place["ts"]), int(place["dur"])) and e["pid"] // 10_000 == 5
    ]
    assert "nccl" in event["name"].lower()
    own = [e for e in events_of(packed) if e["pid"] // 10_000 == 5]
    start, end = int(place["visStart"]), int(place["visEnd"])
    assert min(ns(e, "ts") for e in own) <= start <= ns(event, "ts") < end
    assert end <= max(ns(e, "ts") + ns(e, "dur") for e in events_of(packed))
    assert (end - start) / 1e6 == pytest.approx(43.2, abs=0.5)  # a step of six in 259 ms
    assert json.loads(place["startupCommands"]) == [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [r"^rank 5\b"]}]
    with pytest.raises(OSError):
        asked(place["url"])
    assert [*tmp_path.iterdir()] == []


def test_a_file_of_ones_own_is_served_and_kept(job: Path, opened: Any, tmp_path: Path) -> None:
    page, kept = opened(fetched), tmp_path / "all ranks%.json"
    with pytest.raises(CheckFailed):
        COMMAND.run(Trace(paths=(str(job),), open_=True, merge=kept, fail_if=("straggler",)))
    assert page["answer"][-1][2] == kept.read_bytes()


def test_without_a_browser_the_link_is_printed_and_waits(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Any] = []

    def typed(text: object) -> None:  # the user, who copies the link
        threading.Thread(target=lambda: answers.append(asked(parameters(str(text))["url"])), daemon=True).start()

    monkeypatch.setattr(perfetto, "say", typed)
    monkeypatch.setattr("webbrowser.open", lambda link: pytest.fail(link))
    assert COMMAND.run(Trace(paths=(str(job),), open_=True)) == 0
    assert "ssh -L" in capsys.readouterr().err


def test_ctrl_c_ends_it_and_leaves_nothing(job: Path, opened: Any, tmp_path: Path) -> None:
    def page(link: str) -> None:
        with socket.create_connection(("127.0.0.1", urlsplit(parameters(link)["url"]).port or 0)):
            os.kill(os.getpid(), signal.SIGINT)  # with a connection of the browser's that asks for nothing

    opened(page)
    with pytest.raises(KeyboardInterrupt):
        COMMAND.run(Trace(paths=(str(job),), open_=True))
    assert [*tmp_path.iterdir()] == []


def test_a_port_that_is_taken_says_what_else_can_be_done(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(perfetto, "PORT", other.getsockname()[1])
        with pytest.raises(MissingError, match="is taken") as failed:
            COMMAND.run(Trace(paths=(str(job),), open_=True))
    assert "--merge" in (failed.value.fix or "")


@pytest.mark.parametrize("other", [{"json": True}, {"diff": "old"}, {"diff_steps": "1:2"}])
def test_it_does_not_go_with(other: dict[str, Any], job: Path) -> None:
    with pytest.raises(UsageError, match="--open"):
        COMMAND.run(Trace(paths=(str(job),), open_=True, **other))


def test_traces_at_a_url_are_not_merged() -> None:
    with pytest.raises(UsageError, match="--open does not go with"):
        COMMAND.run(Trace(paths=("https://127.0.0.1/trace.json",), open_=True))


@pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))
def test_a_browser_lets_the_page_fetch_by_its_own_policy_and_no_other_page(job: Path, opened: Any) -> None:
    def page(link: str) -> list[object]:
        url = parameters(link)["url"]
        policy = POLICY.format(port=urlsplit(url).port)
        html = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        answers: list[object] = []
        with browser.browser() as started:
            for origin in ("https://elsewhere.example", perfetto.PAGE):
                context = started.new_context()
                context.grant_permissions(["local-network-access"], origin=origin)  # what Chromium asks the user
                seen = context.new_page()
                seen.route(f"{origin}/**", lambda route: route.fulfill(body=html, content_type="text/html"))
                seen.goto(f"{origin}/#!/?{link.partition('?')[2]}")
                answers.append(seen.evaluate(FETCH, url))
        assert answers[-1] != "TypeError"
        return answers

    result = opened(page)
    assert COMMAND.run(Trace(paths=(str(job),), open_=True)) == 0
    elsewhere, size = result["answer"]
    assert elsewhere == "TypeError"
    assert size > 100_000
