"""The commands that the documentation shows, run: all must end as it says, those in EXACT print what it shows.

A fenced block is a transcript where a line begins with ``$ ``: the lines after it are what the command prints, and a
line ``...`` stands for any number of lines. A block without such a line is a script if it calls ``stepscope``: it must
end with 0. Blocks of one document run in order, in one folder that holds ``jobs``, made by ``stepscope example jobs``, and
the ``examples`` of the checkout.
HTML comments on lines before the block say more:

    <!-- not run: REASON -->     it is only read
    <!-- long -->                it runs in ``make test-long``, and so does what follows it in this document
    <!-- measured -->            its numbers are those of a machine: they and the width of columns are not compared
    <!-- first: COMMAND -->      runs before the block and is not shown
    <!-- exit: CODE -->          the exit code that its last command ends with; what it says on stderr counts

``STEPSCOPE_RENEW_DOCS=1`` writes what the commands print now into the document, around the ``...``, in all of them.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")))
EXACT = {
    "README.md",
    *(
        f"docs/howto/{name}.md"
        for name in ("gate-a-pull-request", "profile-my-job", "read-a-trace", "tour", "why-does-my-job-not-scale")
    ),
}
PROGRAMS = re.compile(
    r"(?:^|[;&|(] *|\$ )(?:[A-Z_]+=\S+ +)*(?:\.venv/bin/)?(?:stepscope|make|torchrun|srun|pip|python -m)\b",
    re.MULTILINE,
)
FENCE = re.compile(
    r"(?P<notes>(?:^ *<!--[^\n]*-->\n)*)^(?P<indent> *)```(?P<kind>\w*)\n(?P<body>.*?)^ *```$", re.M | re.S
)
NOTE = re.compile(r"<!-- *(?P<key>[a-z ]+?)(?:: *(?P<text>.*?))? *-->")
ANY = "..."
TIMEOUT_S = 600

_NUMBER = re.compile(
    r"[±+~-]?\d[\d,.]*(?:e[+-]\d+)?(?: ?(?:%|ns|us|ms|s|x|[kKMGT]i?B(?:/s)?|B|[KMG]|MHz|GHz)(?![\w/]))?"
)


@dataclass(frozen=True)
class Block:
    """A fenced block with commands. start, stop: where its body lies in the document."""

    document: str
    line: int
    body: str
    start: int
    stop: int
    notes: Mapping[str, str]
    first: tuple[str, ...]

    @property
    def transcript(self) -> list[tuple[str, list[str]]]:
        """(command, lines shown after it); empty for a script."""
        found: list[tuple[str, list[str]]] = []
        for line in self.body.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            elif found:
                found[-1][1].append(line)
        return found

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str) -> Iterator[Block]:
    """The blocks of a document that call a program."""
    text = (ROOT / document).read_text()
    for found in FENCE.finditer(text):
        notes = [(n["key"], n["text"] or "") for n in NOTE.finditer(found["notes"])]
        if found["kind"] in ("python", "yaml", "json") or not PROGRAMS.search(found["body"]):
            continue
        yield Block(
            document=document,
            line=text.count("\n", 0, found.start("body")) + 1,
            body=found["body"],
            start=found.start("body"),
            stop=found.end("body"),
            notes=dict(notes),
            first=tuple(value for key, value in notes if key == "first"),
        )


class Shell:
    """A folder in which a document's commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(folder.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "COLUMNS")
        self.environ = {key: value for key, value in os.environ.items() if key not in launcher} | {"PATH": path}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-ec", command], cwd=self.folder, env=self.environ, text=True, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip


def check(block: Block, shell: Shell) -> list[str]:
    """What is not as the block says, a text each; ``STEPSCOPE_RENEW_DOCS``: the block's new body instead of these."""
    for command in block.first:
        done = shell.run(command)
        if done.returncode:
            return [f"{block}: {command!r} ended with {done.returncode}: {done.stderr.strip()}"]
    wanted = int(block.notes.get("exit", 0))
    if not block.transcript:
        done = shell.run(block.body)
        return [] if done.returncode == wanted else [f"{block}: ended with {done.returncode}: {done.stderr.strip()}"]
    wrong, renewed = [], []
    renew = bool(os.environ.get("STEPSCOPE_RENEW_DOCS"))
    for place, (command, shown) in enumerate(block.transcript):
        done = shell.run(command)
        last = place == len(block.transcript) - 1
        if done.returncode != (wanted if last else 0):
            wrong.append(f"{block}: {command!r} ended with {done.returncode}: {done.stderr.strip()}")
        if block.document not in EXACT and not renew:
            continue
        trailing = 0
        while shown and not shown[-1].strip():
            shown, trailing = shown[:-1], trailing + 1
        text = (done.stdout or (done.stderr if wanted else "")).rstrip("\n")
        printed = [line.rstrip() for line in text.split("\n")] if text else []
        if not shown and last and not printed:
            continue
        measured = "measured" in block.notes
        if not _matches(shown, printed, measured=measured):
            difference = "\n".join(difflib.unified_diff(shown, printed, "shown", "printed", lineterm="", n=1))
            wrong.append(f"{block}: {command}\n{difference}")
            shown = _renewed(shown, printed)
        renewed += [f"$ {command}", *shown, *[""] * trailing]
    if wrong and renew:
        path = ROOT / block.document
        path.write_text(path.read_text().replace(block.body, "\n".join(renewed) + "\n", 1))
    return wrong


def _plain(line: str, *, measured: bool) -> str:
    line = line.rstrip()
    if not measured:
        return line
    return re.sub(r"[─═-]{3,}", "---", re.sub(r"\s+", " ", _NUMBER.sub("#", line))).strip()


def _matches(shown: list[str], printed: list[str], *, measured: bool) -> bool:
    """Whether the printed lines are those shown, where ``...`` is any number of lines."""
    lines = [_plain(line, measured=measured) for line in printed]
    parts: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == ANY:
            parts.append([])
        else:
            parts[-1].append(_plain(line, measured=measured))
    if len(parts) == 1:
        return parts[0] == lines
    at = len(parts[0])
    if lines[:at] != parts[0]:
        return False
    for part in parts[1:-1]:
        place = next((i for i in range(at, len(lines) - len(part) + 1) if lines[i : i + len(part)] == part), None)
        if place is None:
            return False
        at = place + len(part)
    tail = parts[-1]
    return len(lines) - len(tail) >= at and (not tail or lines[-len(tail) :] == tail)


def _renewed(shown: list[str], printed: list[str]) -> list[str]:
    """The printed lines, left out where the shown ones are: parts begin and end at the lines most like before."""
    if ANY not in [line.strip() for line in shown]:
        return printed
    made: list[str] = []
    at = 0
    part: list[str] = []
    for line in [*shown, None]:
        if line is not None and line.strip() != ANY:
            part.append(line)
            continue
        if part:
            begin = 0 if not made else _nearest(part[0], printed, at)
            end = len(printed) - 1 if line is None else _nearest(part[-1], printed, begin + len(part) // 2)
            made += printed[begin : end + 1]
            at = end + 1
        if line is not None:
            made.append(ANY)
        part = []
    return made


def _nearest(line: str, printed: list[str], start: int) -> int:
    start = min(start, len(printed) - 1)
    return max(range(start, len(printed)), key=lambda i: (difflib.SequenceMatcher(None, line, printed[i]).ratio(), -i))


def fresh_folder(made: Path, folder: Path) -> Shell:
    """A folder with a copy of the example jobs ``made``, and the training scripts of the checkout."""
    shutil.copytree(made, folder / "jobs")
    (folder / "examples").symlink_to(ROOT / "examples")
    return Shell(folder)
