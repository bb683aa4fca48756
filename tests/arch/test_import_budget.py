"""What may be loaded when: fails on a module, never on a time."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "scipy", "vl_convert", "jinja2")
OFFLINE_FOLDERS = (
    "core", "records", "stats", "machine", "store",
    "strategies", "collectives", "workloads", "datasets", "traces", "predict", "launch", "diagnose", "matrix", "report",
    "cli",
)  # fmt: skip


def loaded_after(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``code``."""
    script = f"{code}\nimport sys, json\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_stepscope_loads_nothing_heavy() -> None:
    assert loaded_after("import stepscope").isdisjoint(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    """Of every command, one after the other."""
    code = (
        "from stepscope.cli.commands import REGISTRY\n"
        "from stepscope.cli.main import main\n"
        "for line in (['--version'], ['--help'], *([name, '--help'] for name in REGISTRY.names())):\n"
        "    try:\n        main(line)\n    except SystemExit as stop:\n        assert not stop.code, (line, stop.code)"
    )
    assert loaded_after(code).isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["predict", "plan"])
def test_a_named_model_is_priced_with_little_loaded(command: str) -> None:
    words = [command, "--model", "gpt2", "--gpu", "h100-sxm", "--gpus", "8"]
    code = f"from stepscope.cli.main import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass"
    assert loaded_after(code).isdisjoint((*HEAVY, "pydantic", "typer", "yaml"))


TRACE_START = """
import os, sys
def opened(event, arguments):
    if event == "open" and arguments[0] == {trace!r}:
        print()
        import json
        print(json.dumps(sorted(sys.modules)), flush=True)
        os._exit(0)
sys.addaudithook(opened)
from stepscope.cli.main import main
main(["trace", {trace!r}, *{options!r}])
"""


@pytest.mark.parametrize("options", [[], ["--show", "budget,overlap"], ["--json"]])
def test_trace_opens_its_file_before_it_loads_what_shows_the_answer(tmp_path: Path, options: list[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    script = TRACE_START.format(trace=str(trace), options=options)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "numpy" in loaded
    late = ("typer", "pydantic", "rich", "jinja2", "yaml", "scipy", "numpy.ma", "numpy.random", "importlib.metadata",
            "multiprocessing", "concurrent.futures", "difflib", "shlex", "statistics", "stepscope.traces.full_pass",
            "stepscope.traces.operators", "stepscope.records.cell", "stepscope.results", "stepscope.machine.peaks",
            "stepscope.report.views", "stepscope.cli.commands.bench")  # fmt: skip
    assert loaded.isdisjoint(late), loaded.intersection(late)
    assert sum(name.startswith("stepscope") for name in loaded) <= 46


@pytest.mark.parametrize(
    ("options", "needless", "most"),
    [
        (["--show", "budget,overlap"], ("shlex", "stepscope.machine.peaks", "stepscope.diagnose.rules"), 62),
        ([], ("stepscope.records.samples", "stepscope.records.environment", "stepscope.machine.collect"), 119),
    ],
)
def test_a_trace_is_shown_with_little_loaded(
    tmp_path: Path, options: list[str], needless: tuple[str, ...], most: int
) -> None:
    trace = tmp_path / "trace.json"
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 1.5,
        "dur": 2.5,
        "args": {"stream": 7},
    }
    trace.write_text(json.dumps({"traceEvents": [kernel]}, indent=2))
    words = ["trace", str(trace), *options]
    script = (
        f"from stepscope.cli.main import main\ntry:\n    main({words!r})\nexcept SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "import sys, json\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "stepscope.report.views.trace_budget" in loaded
    needless += ("typer", "pydantic", "jinja2", "yaml", "scipy", "difflib", "stepscope.cli.app")
    assert loaded.isdisjoint(needless), loaded.intersection(needless)
    ours = [n for n in loaded if n.startswith("stepscope") and not n.startswith("stepscope.diagnose.rules.")]
    assert len(ours) <= most, len(ours)


def test_a_log_is_diagnosed_with_little_loaded(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    line = "[rank0]:[titan] root - INFO - step: {}  loss:  7.1  memory: 30.00GiB(37.97%)  tps: 9,001"
    log.write_text("".join(f"{line.format(step)}  mfu: 15.17%\n" for step in range(1, 40)))
    script = (
        f"from stepscope.cli.main import main\ntry:\n    main(['diagnose', {str(log)!r}])\nexcept SystemExit:\n    pass\n"
        "import sys, json\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert {n for n in loaded if n.startswith("stepscope.store.importers.")} == {
        "stepscope.store.importers.torchtitan_log"
    }
    ours = [n for n in loaded if n.startswith("stepscope") and not n.startswith("stepscope.diagnose.rules.")]
    assert len(ours) <= 119, len(ours)


def test_no_module_of_the_offline_half_loads_torch() -> None:
    """Nor do commands that show what is there."""
    code = (
        "import importlib, pkgutil, stepscope\n"
        f"folders = {OFFLINE_FOLDERS!r}\n"
        "for folder in folders:\n"
        "    package = importlib.import_module(f'stepscope.{folder}')\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not module.name.endswith('__main__'):\n"
        "            importlib.import_module(module.name)\n"
        "from stepscope.cli.main import main\n"
        "for line in (['bench', '--list'], ['bench', '--preset', 'quick', '--show']):\n"
        "    try:\n        main(line)\n    except SystemExit as stop:\n        assert not stop.code, (line, stop.code)"
    )
    assert "torch" not in loaded_after(code)


MODULE_OF = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml", "vl-convert-python": "vl_convert"}


def test_every_base_dependency_is_imported_by_some_line_of_src() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=;\s]", text, maxsplit=1)[0].lower() for text in project["dependencies"]]
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    unused = [
        name
        for name in names
        if not re.search(rf"(^|\n)\s*(import|from) {MODULE_OF.get(name, name.replace('-', '_'))}\b", source)
    ]
    assert not unused
