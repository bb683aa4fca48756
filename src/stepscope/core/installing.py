"""What to type where a package is missing: stepscope is on no index, what its extras need is."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec


def install(*requirements: str) -> str:
    """Return the command that installs requirements for this Python, wherever it is called from."""
    python = sys.executable
    tool = (python, "-m", "pip", "install") if find_spec("pip") else ("uv", "pip", "install", "--python", python)
    return shlex.join([*tool, *requirements])


def install_extra(extra: str) -> str:
    """Return the command that installs what an extra of stepscope needs."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        stated = [text.partition(";") for text in requires("stepscope") or ()]
    except PackageNotFoundError:  # a source folder on PYTHONPATH
        return install(f".[{extra}]") + "   # in a checkout of stepscope"
    return install(
        *(text.strip() for text, _, marker in stated if marker.strip().endswith((f'"{extra}"', f"'{extra}'")))
    )
