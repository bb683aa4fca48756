"""docs/reference/importers.md: every importer and every published file stands in it, and what it says of them holds."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.importers import detect, read_foreign

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "reference" / "importers.md").read_text()
DATA = ROOT.parent / "shared" / "data"
FOLDERS = ("topo", "nccl_tests", "nccl_debug", "memory_snapshots", "flight_recorder", "results")
REFUSED = (
    "environment.txt",
    "pytorch-train-*.csv",
    "benchmark_16gpu.json",
    "shallowspeed_*.txt",
    "tensor_parallel_2gpu.txt",
    "speedup_table.txt",
    "*.yaml",
    "*.xml",
    "fault_injection.log",
    "upstream_reference.txt",
)
FILES = [
    path for name in FOLDERS for path in sorted((DATA / name).rglob("*")) if path.is_file() and path.name != "README.md"
]

on_real_files = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not FILES, reason=f"no real files at {DATA}"),
]


def expanded(pattern: str) -> list[str]:
    """``a{1,2}`` -> ``a1``, ``a2``."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    parts = [pattern[: found.start()] + part + pattern[found.end() :] for part in found[1].split(",")]
    return [text for part in parts for text in expanded(part)]


def holds_something(imported: Imported) -> bool:
    parts = (
        imported.runs,
        imported.comm_rows,
        imported.nccl,
        imported.flight,
        imported.memory,
        imported.topology,
    )
    return any(parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
class TestRealFiles:
    pytestmark = on_real_files

    def test_stands_in_a_row(self, path: Path) -> None:
        patterns = [text for quoted in re.findall(r"`([^`\n]+)`", PAGE) for text in expanded(quoted)]
        inside = path.relative_to(DATA).as_posix()
        assert [text for text in patterns if fnmatchcase(inside, f"*/{text}")]

    def test_is_read_or_refused_with_a_reason(self, path: Path) -> None:
        if any(fnmatchcase(path.name, pattern) for pattern in REFUSED):
            with pytest.raises(DataError) as caught:
                read_foreign(path)
            assert caught.value.why
            assert caught.value.fix
            return
        if path.parent.name == "exp003_ddp_multinode":  # a header without rows
            assert [run.status for run in read_foreign(path).runs] == ["interrupted"]
            return
        assert detect(path) is not None
        assert holds_something(read_foreign(path))
