"""The notebooks of ``examples/notebooks``, executed in a kernel of this Python; ``make notebooks`` renews what they show."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def executed(path: Path) -> Any:
    """The notebook with the outputs that it has now, in a folder of its own."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        own = dict.fromkeys(("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"), folder)
        with mock.patch.dict(os.environ, own):
            client = NotebookClient(
                notebook,
                timeout=60,
                kernel_name="python3",
                record_timing=False,
                resources={"metadata": {"path": folder}},
            )
            client.execute()
    return notebook


def renew(path: Path) -> None:
    """Write the notebook with its outputs, and nothing that differs from run to run."""
    import nbformat

    notebook = executed(path)
    notebook.metadata.language_info = {"name": "python"}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    nbformat.write(notebook, path)


def texts(notebook: Any) -> list[list[str]]:
    """What each cell shows as text."""
    return [
        [output.get("text") or output["data"]["text/plain"] for output in cell.get("outputs", [])]
        for cell in notebook.cells
    ]


if __name__ == "__main__":
    for path in NOTEBOOKS:
        renew(path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB", file=sys.stdout)  # noqa: T201
