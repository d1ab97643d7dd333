"""The repository is laid out as agreed, in pieces small enough to read."""

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("router", "replicas", "serve_app")
TOP_LEVEL = {"pyproject.toml", "README.md", "configs", "tests", "scripts", "LICENSE", *PACKAGES}

MAX_FILE_LINES = 250
MAX_CLASS_LINES = 180
MAX_FUNCTION_LINES = 50
P90_FUNCTION_LINES = 25
MEDIAN_FUNCTION_LINES = 8

DUMPING_GROUNDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "tools"}

FOREIGN = re.compile(
    r"(?<![\w.])/(?:work|farm|root|tmp/plan)/"  # places where nobody else has anything
    r"|\.\./(?:shared|\.library)"
    r"|files\.python[h]osted|pypi\.[o]rg"
    r"|\b(?:TO[D]O|FIX[M]E|XX[X])\b"
    r"|^<{7} |^>{7} "
)


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def sources() -> list[Path]:
    return tracked(*(f"{package}/*.py" for package in PACKAGES))


def definitions(path: Path) -> Iterator[tuple[int, str, type[ast.AST]]]:
    """Length in lines, place and kind of each function and class."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", type(node)


def test_top_level_holds_the_agreed_names_and_hidden_files_only() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked(".")}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed_and_its_init_files_hold_no_code(package: str) -> None:
    """An import of a part must not run, nor drag in, its siblings."""
    assert (ROOT / package / "py.typed").is_file()
    for path in tracked(f"{package}/*__init__.py"):
        body = ast.parse(path.read_text()).body
        is_empty = all(
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body
        )
        assert is_empty, path


def test_no_module_is_a_dumping_ground() -> None:
    assert [path for path in tracked("*.py") if path.stem in DUMPING_GROUNDS] == []


def test_every_source_file_says_what_it_is_for() -> None:
    silent = [
        path.relative_to(ROOT)
        for path in sources()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_source_file_is_too_long() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources()}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_class_or_function_is_too_long() -> None:
    limits = {ast.ClassDef: MAX_CLASS_LINES}
    long = [
        (lines, place)
        for path in sources()
        for lines, place, kind in definitions(path)
        if lines > limits.get(kind, MAX_FUNCTION_LINES)
    ]
    assert long == []


def test_most_functions_are_short() -> None:
    lengths = sorted(
        lines
        for path in sources()
        for lines, _, kind in definitions(path)
        if kind is not ast.ClassDef
    )
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES
    assert lengths[len(lengths) * 9 // 10] <= P90_FUNCTION_LINES


def test_no_file_names_a_place_that_only_its_writer_had() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked(".")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if FOREIGN.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("name", ["setup", "serve", "test", "check", "fix"])
def test_script_can_be_run_and_stops_at_the_first_failure(name: str) -> None:
    path = ROOT / "scripts" / name
    assert path.stat().st_mode & 0o111
    assert "set -euo pipefail" in path.read_text()


def test_ci_runs_all_checks_and_all_tests() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    assert "scripts/check" in text
    assert 'scripts/test" --all' in text
