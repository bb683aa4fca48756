"""20 questions on the example jobs: is the answer where the documents of tools and commands are said to have it?

What is planted in the jobs is in ``stepscope.examples.jobs``. A change of the interface that an assistant would stumble over
shows here, or in tests/unit/cli/test_assistant_questions.py, which asks the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._report import heading
from stepscope.api.assistant import Assistant
from stepscope.cli.main import main as command
from stepscope.examples.jobs import EXAMPLES, LOST, MS


@dataclass(frozen=True)
class Question:
    """tool: of ``stepscope mcp``, with its arguments; or ``command``, with its ``line``, ``{}`` for the folder of the jobs.

    place: where in the document the answer is. within: share by which a number may differ.
    """

    text: str
    tool: str
    place: str
    answer: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    line: str = ""
    within: float = 0.0

    def right(self, answer: Any) -> bool:
        if isinstance(self.answer, float):
            return isinstance(answer, int | float) and abs(answer - self.answer) <= self.within * abs(self.answer)
        return bool(answer == self.answer)


def of(tool: str, text: str, place: str, answer: Any, within: float = 0.0, **arguments: Any) -> Question:
    return Question(text, tool, place, answer, arguments, within=within)


def by_command(line: str, text: str, place: str, answer: Any, within: float = 0.0) -> Question:
    return Question(text, "command", place, answer, line=line, within=within)


QUESTIONS = (
    of("open", "what lies there?", "folders.0.entries.0", "bad-scaling/"),
    of("verdict", "which rank is slow?", "findings.0.ranks.0", LOST, path="straggler"),
    of("verdict", "how much time would its repair save at most?", "findings.0.stake_fraction", 0.15, 0.03, path="straggler"),
    of("verdict", "do the others wait, or is the network slow?", "screen.tree.1.parts.1.cause", True, path="straggler"),
    of("table", "why is it late?", "rows.0.cause", "more compute", path="straggler", name="stragglers"),
    of("table", "which rank computes longest?", "rows.0.rank", LOST, path="straggler", name="ranks", sort="-compute",
       limit=1),
    of("predict", "how many times the throughput on 64 GPUs?", "steps.0.throughput", 7.55, 0.03, path="straggler",
       gpus=[64]),
    of("verdict", "what is wrong with the job's synchronisation?", "screen.mark", "naive-synchronisation", path="naive"),
    of("compare", "is DDP faster?", "figures.0.verdict", "better", before="naive", after="ddp"),
    of("compare", "by how much shorter is its step?", "figures.0.change", -0.234, 0.02, before="naive", after="ddp"),
    of("compare", "were machine and settings the same?", "differences", [], before="naive", after="ddp"),
    of("verdict", "which rank hangs?", "findings.0.subject", f"rank {LOST}", path="hang"),
    of("next_command", "what to run on it?", "steps.0.command", "py-spy dump --native --pid PID", path="hang"),
    of("table", "where is most lost by scaling?", "rows.0.part", "exposed communication", path="bad-scaling",
       name="scaling_budget"),
    of("table", "how long do 6 steps wait for data?", "rows.0.idle", 6.0 * 9 * MS, 0.02, path="bad-scaling", name="idle",
       where=["capture == 8-gpus", "cause == data"]),
    of("verdict", "are the accuracies of these runs to be trusted?", "findings.0.rule", "duplicated-data", path="logs"),
    of("table", "what is NCCL's network?", "rows.0.network", "Socket", path="sockets", name="nccl_debug"),
    by_command("trace {}/sockets/traces --show collectives --json", "bytes of one all-reduce?", "collectives.0.size_bytes",
               4096 * 4096 * 2),
    by_command("diagnose {}/unfit --json", "can the trace be trusted?", "findings.0.priority", "doubt"),
    by_command("diagnose --explain straggler --json", "from which number of steps on is a straggler named?",
               "rules.0.thresholds.steps.value", 20),
)  # fmt: skip


def asked(question: Question, assistant: Assistant) -> Any:
    """The answer at its place. Raises what an assistant would meet: an error of the tool, or a key that is not there."""
    if question.tool == "command":
        document = printed(question.line.format(assistant.folders[0]).split())
    else:
        document = json.loads(assistant.call(question.tool, question.arguments))
    for key in question.place.split("."):
        document = document[int(key) if isinstance(document, list) else key]
    return document


def printed(words: list[str]) -> Any:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        command(words)
    return json.loads(text.getvalue())


def main() -> int:
    heading("questions of an assistant")
    right = 0
    with tempfile.TemporaryDirectory() as name:
        for job, example in EXAMPLES.items():
            example.write(Path(name) / job)
        assistant = Assistant([Path(name)])
        for question in QUESTIONS:
            try:
                answer = asked(question, assistant)
            except Exception as error:  # noqa: BLE001 - whatever it is, the question has no answer
                answer = f"{type(error).__name__}: {error}"
            right += question.right(answer)
            what = question.line.format("JOBS") or " ".join([question.tool, *map(str, question.arguments.values())])
            print(
                f"{'ok' if question.right(answer) else 'NO':<3} {question.text:<56} {what}: {question.place} = {answer!r}"
            )
    print(f"answered: {right} of {len(QUESTIONS)}; bar: {len(QUESTIONS)} of {len(QUESTIONS)}", flush=True)
    return 0 if right == len(QUESTIONS) else 1


if __name__ == "__main__":
    sys.exit(main())
