"""Folders as registries: every file exports its symbol, both halves have the same stems, names cost no import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.commands import REGISTRY as COMMANDS
from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.errors import UsageError
from stepscope.datasets import REGISTRY as DATASETS
from stepscope.rank.collectives import REGISTRY as COLLECTIVE_IMPLEMENTATIONS
from stepscope.rank.strategies import REGISTRY as STRATEGY_IMPLEMENTATIONS
from stepscope.rank.workloads import REGISTRY as WORKLOAD_IMPLEMENTATIONS
from stepscope.report.exports import REGISTRY as EXPORTS
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import REGISTRY as WORKLOADS

SPECS = [STRATEGIES, WORKLOADS, DATASETS, COLLECTIVES]
ALL = [*SPECS, COMMANDS, EXPORTS, STRATEGY_IMPLEMENTATIONS, WORKLOAD_IMPLEMENTATIONS, COLLECTIVE_IMPLEMENTATIONS]


@pytest.mark.parametrize("registry", ALL, ids=lambda r: r.package)
def test_every_file_of_a_registry_exports_its_symbol(registry) -> None:
    assert registry.names()
    for name in registry.names():
        registry.load(name)


@pytest.mark.parametrize("registry", SPECS, ids=lambda r: r.package)
def test_an_entry_is_called_as_its_file(registry) -> None:
    assert all(registry.load(name).key == name for name in registry.names())


@pytest.mark.parametrize(
    ("spec", "implementation"),
    [
        (STRATEGIES, STRATEGY_IMPLEMENTATIONS),
        (WORKLOADS, WORKLOAD_IMPLEMENTATIONS),
        (COLLECTIVES, COLLECTIVE_IMPLEMENTATIONS),
    ],
    ids=["strategies", "workloads", "collectives"],
)
def test_spec_and_implementation_have_the_same_stems(spec, implementation) -> None:
    assert spec.names() == implementation.names()


def test_an_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'naive'"):
        STRATEGIES.load("naiv")


def test_listing_names_imports_no_entry() -> None:
    code = (
        "import sys\nfrom stepscope.datasets import REGISTRY\n"
        "assert 'mnist' in REGISTRY.names()\n"
        "assert 'stepscope.datasets.mnist' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_third_party_adds_an_entry_through_its_entry_point(tmp_path, monkeypatch) -> None:
    (tmp_path / "their_package.py").write_text("THEIRS = object()\n")
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stepscope.strategies]\ntheirs = their_package:THEIRS\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import their_package

    assert "theirs" in STRATEGIES.names()
    assert STRATEGIES.load("theirs") is their_package.THEIRS
    assert "theirs" in STRATEGIES.names()
    monkeypatch.delitem(sys.modules, "their_package")


def test_a_folders_private_modules_are_read_in_that_folder_only() -> None:
    """What others need of a folder of plugins, its ``__init__`` gives; views share with all of report."""
    source = Path(stepscope.__file__).parent
    pattern = re.compile(r"(?:from|import) stepscope\.((?:\w+\.)*)(_[a-z]\w*)\b")
    strange = []
    for path in source.rglob("*.py"):
        for match in pattern.finditer(path.read_text()):
            folder = source.joinpath(*match[1].strip(".").split("."))
            if path.parent != folder and folder.name != "views":
                strange.append(f"{path.relative_to(source)}: {match[0]}")
    assert not strange


def test_help_does_not_ask_importlib_for_plugins_that_nobody_registers() -> None:
    code = (
        "import sys\nfrom stepscope.cli.main import main\n"
        "before = 'importlib.metadata' in sys.modules\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert before or 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_type_checkers_know_every_public_function() -> None:
    """``__init__.pyi`` stands in for ``__init__.py``, which imports each on first use."""
    stub = (Path(stepscope.__file__).parent / "__init__.pyi").read_text()
    found = re.findall(r"^from (\S+) import (\w+) as (\w+)$", stub, re.MULTILINE)
    assert {name: (module, attribute) for module, attribute, name in found} == stepscope._HOMES
    assert all(callable(getattr(stepscope, name)) for name in stepscope._HOMES if name != "annotate")
