"""``stepscope mcp`` as a client sees it: the SDK's own over stdio; and what it says without a client or an SDK."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Ran
from tests.trace_builder import build, write_job

from stepscope.api.assistant import MOST_CHARACTERS, Assistant

COMMAND = [sys.executable, "-m", "stepscope", "mcp"]


def asked(folder: Path, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The tools of a server for the folder, and its answers, by the client of the SDK."""
    pytest.importorskip("mcp_types", reason="the SDK of the Model Context Protocol (mcp, version 2) is not installed")
    import anyio
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    async def ask() -> tuple[list[Any], list[Any]]:
        server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], str(folder)], env=dict(os.environ))
        async with Client(server) as client:
            return (await client.list_tools()).tools, [await client.call_tool(*call) for call in calls]

    return anyio.run(ask)


@pytest.mark.e2e
@pytest.mark.filterwarnings("default")
def test_a_client_is_answered_and_refused_with_the_reason(tmp_path: Path) -> None:
    write_job(build(world=2, steps=3), tmp_path / "jobs" / "small")
    tools, answers = asked(
        tmp_path / "jobs",
        ("open", {}),
        ("verdict", {"path": "small"}),
        ("table", {"path": "small", "name": "events", "limit": 10**6}),
        ("open", {"path": "/etc"}),
        ("run", {}),
        ("next_command", {"path": "small"}),
    )
    assert [tool.name for tool in tools] == list(Assistant.TOOLS)
    assert all(tool.annotations.read_only_hint and not tool.annotations.open_world_hint for tool in tools)
    assert [answer.is_error for answer in answers] == [False, False, True, True, True, False]
    texts = [answer.content[0].text for answer in answers]
    assert json.loads(texts[0])["folders"][0]["entries"] == ["small/"]
    assert json.loads(texts[1])["screen"]["headline"]
    assert max(map(len, texts)) <= MOST_CHARACTERS
    for refused in texts[2:4]:
        assert "\n  why: " in refused
        assert "\n  fix: " in refused


def test_mistakes_are_refused_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    assert ran("mcp", tmp_path / "nothing").code == 2
    monkeypatch.chdir("/")
    assert ran("mcp").code == 2


def test_without_the_sdk_its_installation_is_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    answer = ran("mcp", tmp_path)
    assert answer.code == 3
    assert "mcp>=2" in answer.err


@pytest.mark.e2e
def test_ctrl_c_ends_a_server_in_a_terminal(tmp_path: Path) -> None:
    pytest.importorskip("mcp_types", reason="the SDK of the Model Context Protocol (mcp, version 2) is not installed")
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, str(tmp_path)], stdin=end, stdout=end, stderr=end, start_new_session=True
    ) as server:
        os.close(end)
        text, limit = b"", time.monotonic() + 60
        while b"Ctrl-C" not in text and time.monotonic() < limit:
            if select.select([terminal], [], [], 1)[0]:
                text += os.read(terminal, 4096)
        assert b"Ctrl-C" in text
        time.sleep(0.5)  # until it waits for the line
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(20) == 130
        finally:
            server.kill()
            os.close(terminal)
