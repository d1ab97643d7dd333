"""Who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(path: Path) -> set[str]:
    """The dotted names of all modules that a file imports, at whatever depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def top(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def test_unit_tests_import_no_ray() -> None:
    users = [p for p in (ROOT / "tests" / "unit").rglob("*.py") if "ray" in top(p)]
    assert users == []


@pytest.mark.parametrize(
    "package",
    ["router/core", "router/policies", "router/contexts", "router/replay", "replicas/sim"],
)
def test_pure_package_reads_no_clock_and_draws_no_chance_of_its_own(package: str) -> None:
    """Time and randomness are arguments; `random.Random` may be named as a type."""
    readers = {
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node.func)}"
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith(("time.", "random.", "datetime.", "asyncio.sleep"))
        and ast.unparse(node.func) != "random.Random"
    }
    assert readers == set()


def test_builder_module_keeps_its_annotations_as_classes() -> None:
    """Serve reads the builder's parameter type; postponed annotations make it a plain dict."""
    assert "__future__" not in imported(ROOT / "serve_app" / "app.py")
