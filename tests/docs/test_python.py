"""docs/reference/python.md: its reference is the docstrings', and each line that answers a question of HTA gives a table.

``STEPSCOPE_RENEW_DOCS=1`` writes the reference anew.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.documents import ROOT
from tests.trace_builder import build, write_job

import stepscope
from stepscope.core.errors import DataError

PAGE = ROOT / "docs/reference/python.md"
MARK = "Generated from the docstrings.\n"
ORDER = (
    "open", "Job", "Frame", "Answer", "DrawnChart", "StepMonitor", "annotate", "analyse_job", "load_traces",
    "diagnose_traces", "trace_table",
)  # fmt: skip
ONLY_SOME = {"memory", "counters", "stragglers"}
"""Tables that the job of this test does not fill."""

HTA = {
    "get_comm_comp_overlap", "get_profiler_steps", "get_potential_stragglers", "get_gpu_kernel_breakdown",
    "get_gpu_kernels_with_user_annotations", "get_gpu_user_annotation_breakdown", "get_temporal_breakdown",
    "get_frequent_cuda_kernel_sequences", "get_aten_op_kernels_and_delay", "get_cuda_kernel_launch_stats",
    "get_queue_length_summary", "get_queue_length_summary_from_time_series", "get_queue_length_time_series",
    "get_time_spent_blocked_on_full_queue", "get_memory_bw_summary", "get_memory_bw_time_series",
    "get_idle_time_breakdown", "get_cupti_counter_data_with_operators", "critical_path_analysis",
    "TraceDiff.compare_traces", "TraceDiff.ops_diff",
}  # fmt: skip
"""Public methods of HolisticTraceAnalysis 0.5.0 that answer with data."""


def signature(function: Any, name: str) -> str:
    """The signature as the source has it, on several lines where it is long."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    if node.args.args and node.args.args[0].arg == "self":
        del node.args.args[0]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    text = f"{name}({ast.unparse(node.args)}){result}"
    if len(text) <= 100:
        return text
    lines, depth = [""], 0
    for letter in ast.unparse(node.args):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            lines.append("")
        else:
            lines[-1] += letter
    return f"{name}(\n" + "".join(f"    {line.strip()},\n" for line in lines) + f"){result}"


def prose(what: Any) -> str:
    """A docstring as Markdown."""
    text = re.sub(r":(?:meth|func|class):(`.+?`)", r"\1", inspect.cleandoc(what.__doc__ or ""))
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL) + "\n"


def members(kind: type) -> Iterator[str]:
    """What a class offers, in the order of its source."""
    for name, member in vars(kind).items():
        if name.startswith("_") or not (callable(member) or hasattr(member, "__get__")) or not member.__doc__:
            continue
        if inspect.isfunction(member):
            yield f"#### `{kind.__name__}.{name}`\n\n```python\n{signature(member, name)}\n```\n\n{prose(member)}"
        elif (function := getattr(member, "func", None) or getattr(member, "fget", None)) is not None:
            returned = function.__annotations__.get("return", "")
            yield f"#### `{kind.__name__}.{name}`: `{returned}`\n\n{prose(function)}"


def reference() -> Iterator[str]:
    for name in ORDER:
        public = getattr(stepscope, name)
        if not inspect.isclass(public):
            yield f"### `stepscope.{name}`\n\n```python\n{signature(public, name)}\n```\n\n{prose(public)}"
            continue
        made = (
            "" if is_dataclass(public) or name == "Job" else f"```python\n{signature(public.__init__, name)}\n```\n\n"
        )
        yield f"### `stepscope.{name}`\n\n{made}{prose(public)}"
        yield from members(public)


def test_the_reference_is_that_of_the_docstrings() -> None:
    assert set(ORDER) == set(stepscope.__all__) - {"__version__"}
    text, written = PAGE.read_text(), "\n".join(reference())
    before, _, after = text.partition(MARK)
    if os.environ.get("STEPSCOPE_RENEW_DOCS"):
        PAGE.write_text(f"{before}{MARK}\n{written}")
    else:
        assert after.removeprefix("\n") == written


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder: Path = tmp_path_factory.mktemp("jobs")
    earlier = write_job(build(world=2, steps=3), folder / "a")
    return {
        "job": stepscope.open(earlier),
        "later": write_job(build(world=2, steps=3, forward_ns=900_000), folder / "b"),
    }


def test_each_question_of_hta_has_one_line_that_answers_it(jobs: dict[str, object]) -> None:
    rows = re.findall(r"^\| `([A-Za-z_.]+)` \| `(job\..+?)` \|", PAGE.read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == HTA
    assert len(rows) == len(HTA)
    for name, line in rows:
        try:
            assert len(eval(line, jobs)), name
        except DataError:
            assert any(f'"{table}"' in line for table in ONLY_SOME), name
