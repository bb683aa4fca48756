"""No module imports itself over others: imports inside functions and for type checkers are counted."""

from __future__ import annotations

import grimp


def test_no_module_imports_itself_over_others() -> None:
    graph = grimp.build_graph("stepscope")
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    left = True
    while left:  # a module that imports nothing more is in no cycle
        done = {module for module, others in imported.items() if not others}
        left = bool(done)
        imported = {module: others - done for module, others in imported.items() if module not in done}
    importers = {module: {each for each, others in imported.items() if module in others} for module in imported}
    while done := {module for module, others in importers.items() if not others}:
        importers = {module: others - done for module, others in importers.items() if module not in done}
    found = sorted(f"{module} -> {other}" for module in importers for other in imported[module] & importers.keys())
    assert found == [], "cycles of imports: " + ", ".join(found)
