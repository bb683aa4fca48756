"""The tools of an assistant without a client: what they answer, how answers are cut, what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.assistant_questions import QUESTIONS, Question, asked
from tests.commands import Ran
from tests.documents import ROOT
from tests.trace_builder import build, write_job

import stepscope
from stepscope.api import assistant as tools
from stepscope.api.assistant import MOST_CHARACTERS, MOST_ROWS, Assistant
from stepscope.cli.commands.schema import documents
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.examples.jobs import EXAMPLES
from stepscope.records.schemas import document_schema


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name, example in EXAMPLES.items():
        example.write(folder / name)
    return folder


@pytest.fixture(scope="module")
def served(examples: Path) -> Assistant:
    return Assistant([examples])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_job(build(world=2, steps=3), tmp_path / "jobs" / "small")
    return tmp_path / "jobs"


def answered(assistant: Assistant, tool: str, **arguments: Any) -> Any:
    text = assistant.call(tool, arguments)
    assert len(text) <= MOST_CHARACTERS
    return json.loads(text)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_an_assistants_questions_have_their_answers(question: Question, served: Assistant) -> None:
    assert question.right(asked(question, served))


def test_the_page_shows_what_is_answered(served: Assistant, examples: Path) -> None:
    page = (ROOT / "docs/howto/ask-an-assistant.md").read_text()
    [block] = re.findall(r"^```tools\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    calls = re.findall(r"^> (\w+) (\{[^\n]*\})\n(.*?)(?=^> |\Z)", block, re.MULTILINE | re.DOTALL)
    assert len(calls) == block.count("> ")
    for tool, arguments, shown in calls:
        try:
            text = served.call(tool, json.loads(arguments))
        except StepscopeError as error:
            text = str(error)
        answer, said = ("".join(each.split()) for each in (text.replace(str(examples), "/data/jobs"), shown))
        assert re.fullmatch(".*".join(map(re.escape, said.split("..."))), answer), (tool, arguments, text)


def test_there_are_twenty_of_every_tool_and_job() -> None:
    assert len(QUESTIONS) == 20
    arguments = [*(str(q.arguments) for q in QUESTIONS), *(q.line for q in QUESTIONS)]
    assert all(any(job in text for text in arguments) for job in EXAMPLES)


def test_answers_are_the_documents_of_commands(ran: Ran, folder: Path) -> None:
    verdict = answered(Assistant([folder]), "verdict", path="small")
    printed = json.loads(ran("diagnose", str(folder / "small"), "--json").out)
    assert {key: verdict[key] for key in ("screen", "findings", "metrics", "sources")} == {
        key: printed[key] for key in ("screen", "findings", "metrics", "sources")
    }
    cut = {each["part"]: each["of"] for each in verdict["cut"] or ()}
    for key in ("skipped", "quiet"):
        assert verdict[key] == printed[key][: len(verdict[key])]
        assert cut.get(key, len(verdict[key])) == len(printed[key])


def test_each_step_names_the_rule_that_advises_it_once(served: Assistant) -> None:
    for job in EXAMPLES:
        findings = answered(served, "verdict", path=job, part="findings")["value"]
        steps = answered(served, "next_command", path=job)["steps"]
        advised = {advice["text"]: finding["rule"] for finding in findings[::-1] for advice in finding["advice"]}
        assert {step["text"]: step["rule"] for step in steps} == advised
        assert len(steps) == len(advised)
        assert steps[0]["rule"] == findings[0]["rule"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("open", {}),
        ("open", {"path": "hang"}),
        ("verdict", {"path": "hang"}),
        ("table", {"path": "hang", "name": "findings"}),
        ("next_command", {"path": "hang"}),
        ("compare", {"before": "naive", "after": "ddp"}),
        ("predict", {"path": "ddp"}),
        ("explain_rule", {}),
    ],
)
def test_answers_have_the_keys_of_their_schema(served: Assistant, tool: str, arguments: dict[str, Any]) -> None:
    answer = answered(served, tool, **arguments)
    key = answer["schema"].removeprefix("stepscope.")
    assert set(document_schema(key, documents()[key])["required"]) <= set(answer)


def test_what_is_cut_can_be_read_on_to_its_end(
    served: Assistant, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MOST_CHARACTERS", 8_000)
    whole = stepscope.open(examples / "bad-scaling").to_json()
    answer = answered(served, "verdict", path="bad-scaling")
    assert answer["screen"]["headline"] == whole["screen"]["headline"]
    assert answer["cut"]
    for part in ("skipped", "quiet"):
        items, rest = list(answer[part]), next(each for each in answer["cut"] if each["part"] == part)
        while rest is not None:
            assert rest["offset"] == len(items)
            more = answered(served, "verdict", path="bad-scaling", part=part, offset=len(items))
            assert len(more["value"]) > 0
            items += more["value"]
            rest = more["cut"][0] if more["cut"] else None
        assert [item["rule"] for item in items] == [
            item["rule"] for item in json.loads(json.dumps(whole[part], default=list))
        ]


def test_lists_inside_a_part_are_cut_too() -> None:
    long = {"schema": "stepscope.x/1", "screen": {"tree": [{"by_rank": [[n, 1.5] for n in range(9_000)]}]}}
    answer = tools._cut(long)
    [rest] = answer["cut"]
    assert rest["part"] == "screen.tree.0.by_rank"
    assert rest["of"] == 9_000
    assert len(answer["screen"]["tree"][0]["by_rank"]) == rest["offset"]
    after = tools._cut(long, rest["part"], rest["offset"])
    assert after["value"][0][0] == rest["offset"]
    assert after["cut"][0] == {"part": rest["part"], "offset": after["value"][-1][0] + 1, "of": 9_000}


def test_rows_are_chosen_sorted_and_read_on(served: Assistant, examples: Path) -> None:
    events = stepscope.open(examples / "straggler").events
    wanted = [e for e in events if e["rank"] == 5 and e["dur_ns"] > 1e6 and "gemm" in str(e["name"])]
    asks: dict[str, Any] = {
        "path": "straggler",
        "name": "events",
        "where": ["rank == 5", "dur_ns > 1e6", "name ~ GEMM"],
    }
    first = answered(served, "table", **asks, columns=["dur_ns", "rank"], sort="-dur_ns", limit=7)
    longest = sorted((e["dur_ns"] for e in wanted), reverse=True)
    assert first["of"] == len(wanted)
    assert [row["dur_ns"] for row in first["rows"]] == longest[:7]
    assert first["next_offset"] == 7
    assert first["units"] == {"dur_ns": "ns"}
    whole = answered(served, "table", path="straggler", name="events", limit=MOST_ROWS)
    assert whole["next_offset"] == len(whole["rows"]) < MOST_ROWS
    after = answered(served, "table", path="straggler", name="events", offset=whole["next_offset"], limit=1)
    assert after["rows"][0]["ts_ns"] == events["ts_ns"][whole["next_offset"]]
    assert after["of"] == len(events)


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("rank == 5", 1),
        ("rank != 5", 7),
        ("rank >= 6", 2),
        ("verdict == COMPUTE", 8),
        ("verdict != compute", 0),
        ("mfu == none", 0),
    ],
)
def test_a_condition_chooses_rows(served: Assistant, condition: str, count: int) -> None:
    assert answered(served, "table", path="straggler", name="ranks", where=[condition])["of"] == count


def test_unknown_values_are_null_and_come_last(served: Assistant) -> None:
    table = answered(
        served, "table", path="bad-scaling", name="ranks", sort="-hidden_fraction", columns=["hidden_fraction"]
    )
    shares = [row["hidden_fraction"] for row in table["rows"]]
    assert shares[-1] is None
    assert shares[:-1] == sorted(shares[:-1], reverse=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 10**6},
        {"limit": 0},
        {"limit": "many"},
        {"offset": -1},
        {"where": ["rank is 5"]},
        {"where": ["rank > much"]},
        {"where": ["rnk == 5"]},
        {"columns": ["rnk"]},
        {"sort": "rnk"},
        {"rows": 5},
        {"name": "rnks"},
        {"path": "stragler"},
        {"path": "https://example.com/trace.json"},
        {"path": "s3:/bucket/run"},
        {"path": "../../etc/passwd"},
        {"path": "/etc/passwd"},
        {"path": "straggler/../../.."},
        {"path": "a\0b"},
        {"path": "a" * 9_000},
    ],
    ids=str,
)
def test_what_cannot_be_answered_is_refused_with_the_reason(served: Assistant, arguments: dict[str, Any]) -> None:
    with pytest.raises(StepscopeError) as refused:
        served.call("table", {"path": "straggler", "name": "ranks"} | arguments)
    assert refused.value.why or refused.value.fix or "did you mean" in refused.value.what
    assert len(str(refused.value)) < 600


def test_a_million_rows_are_refused_with_what_to_do(served: Assistant) -> None:
    with pytest.raises(UsageError) as refused:
        served.call("table", {"path": "straggler", "name": "events", "limit": 10**6})
    assert f"{MOST_ROWS:,} rows" in str(refused.value.why)
    assert "offset" in str(refused.value.fix)


def test_unknown_tools_parts_and_rules_are_refused(served: Assistant) -> None:
    asks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("run", {}),
        ("__init__", {"folders": []}),
        ("verdict", {"path": "straggler", "part": "findngs"}),
        ("verdict", {"path": "straggler", "part": "findings.9"}),
        ("verdict", {"path": "straggler", "offset": 3}),
        ("explain_rule", {"name": "stragler"}),
        ("predict", {"path": "straggler", "gpus": [0]}),
        ("predict", {"path": "straggler", "gpus": []}),
        ("compare", {"before": "straggler", "after": "straggler"}),
        ("predict", {"path": "straggler", "what_if": "gpu=none"}),
        ("predict", {"path": "straggler", "calib": "/etc/passwd"}),
    )
    for tool, arguments in asks:
        with pytest.raises(StepscopeError):
            served.call(tool, arguments)


@pytest.mark.parametrize("link", ["a file", "a folder", "the job itself", "through another folder"])
def test_links_that_lead_outside_are_refused(folder: Path, tmp_path: Path, link: str) -> None:
    outside = write_job(build(world=3, steps=3), tmp_path / "outside")
    asked_for = folder / "small"
    if link == "a file":
        (asked_for / "rank-2.json").symlink_to(outside / "rank-2.json")
    elif link == "a folder":
        (asked_for / "more").symlink_to(outside)
    elif link == "the job itself":
        asked_for = folder / "elsewhere"
        asked_for.symlink_to(outside)
    else:
        (folder / "other").mkdir()
        (folder / "other" / "more").symlink_to(outside)
        (asked_for / "other").symlink_to(folder / "other")
    with pytest.raises(UsageError, match="outside the folders"):
        Assistant([folder]).call("verdict", {"path": asked_for.name})
    assert answered(Assistant([folder, outside]), "verdict", path=asked_for.name)["sources"]


def test_links_inside_are_followed_and_circles_end(folder: Path) -> None:
    (folder / "latest").symlink_to(folder / "small")
    (folder / "small" / "again").symlink_to(folder)
    (folder / "small" / "gone").symlink_to(folder / "nothing")
    assert answered(Assistant([folder]), "open", path="latest")["files_found"][0]["files"] == 2


def test_a_job_is_read_again_when_its_files_change(folder: Path) -> None:
    assistant = Assistant([folder])
    before = answered(assistant, "table", path="small", name="steps")["of"]
    kept = assistant._jobs[folder.resolve() / "small"][1]
    assert answered(assistant, "table", path="small", name="steps")["of"] == before
    assert assistant._jobs[folder.resolve() / "small"][1] is kept
    write_job(build(world=2, steps=5), folder / "small")
    assert answered(assistant, "table", path="small", name="steps")["of"] > before


def test_what_another_program_would_have_to_convert_is_refused(folder: Path) -> None:
    (folder / "small" / "report.nsys-rep").write_bytes(b"x")
    with pytest.raises(UsageError) as refused:
        Assistant([folder]).call("verdict", {"path": "small"})
    assert "nsys export" in str(refused.value.fix)


def test_too_many_files_are_no_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MOST_FILES", 2)
    with pytest.raises(UsageError, match="more than 2 files"):
        Assistant([folder]).call("open", {"path": "small"})


def test_folders_have_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("nothing", "file"):
        with pytest.raises(DataError, match="not a folder"):
            Assistant([tmp_path / name])


WATCHED = """
import os, sys
opened = []
def seen(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.rename", "os.remove", "os.mkdir"):
        opened.append((event, str(arguments)))
    elif event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        opened.append((event, str(arguments)))
from pathlib import Path
from stepscope.api.assistant import Assistant
assistant = Assistant([Path(sys.argv[1])])
sys.dont_write_bytecode = True
sys.addaudithook(seen)
for tool in ("open", "verdict", "predict", "next_command"):
    assistant.call(tool, {"path": "small"})
assistant.call("table", {"path": "small", "name": "steps"})
assistant.call("compare", {"before": "small", "after": "other"})
assistant.call("explain_rule", {"name": "straggler"})
print(*opened, sep="\\n")
"""


def test_nothing_is_written_started_or_sent(folder: Path) -> None:
    write_job(build(world=1, steps=3), folder / "other")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
    )
    assert done.stdout.strip() == ""
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_each_tool_says_what_it_takes(served: Assistant) -> None:
    schemas = {name: (text, schema) for name, text, schema in served.schemas()}
    assert tuple(schemas) == Assistant.TOOLS
    for text, schema in schemas.values():
        assert 40 < len(text) < 500
        assert schema["additionalProperties"] is False
        assert all(field["description"] for field in schema["properties"].values())
