"""Serve's own commands with the installed wheel: outside the checkout, no flag in the environment.

The wheel goes into a virtual environment of its own that borrows the heavy packages.
"""

import contextlib
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml

from tests.serve.conftest import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 240


def build_wheel(folder: Path) -> Path:
    """From a copy, so that nothing left in the checkout gets in."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for package in ("router", "replicas", "serve_app"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    pip = [sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", str(folder)]
    subprocess.run([*pip, str(source)], check=True)
    return next(folder.glob("warmpath-*.whl"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the environment that has the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(folder)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    own_site = next(venv.glob("lib/python*/site-packages"))
    (own_site / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    return python


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: Ray puts sockets below it."""
    with tempfile.TemporaryDirectory(prefix="wp-", dir="/tmp") as name:
        yield Path(name)


def environment(home: Path) -> dict[str, str]:
    """What a fresh login has; Ray's folder and token lie below `home`."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "RAY_TMPDIR": str(home)}


def sim_config(folder: Path, name: str, port: int) -> Path:
    config = yaml.safe_load((ROOT / "configs" / "sim.yaml").read_text())
    config["http_options"]["port"] = port
    model = config["applications"][0]["args"]["models"][0]
    model |= {"name": name, "replicas": 1}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def wait_for_model(process: subprocess.Popen[bytes], url: str, name: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            body = {"model": name, "prompt": [1, 2, 3], "max_tokens": 3}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30).json()
            assert answer["usage"]["completion_tokens"] == 3
            return
        time.sleep(0.5)
    pytest.fail(f"{name} did not answer:\n{log.read_text()[-3000:]}")


def test_wheel_holds_the_three_packages_and_nothing_else(python: Path, home: Path) -> None:
    code = "import router, replicas, serve_app; print(serve_app.__file__)"
    shown = subprocess.run(
        [python, "-c", code], env=environment(home), cwd=home, capture_output=True, check=True
    )
    assert Path(shown.stdout.decode().strip()).is_relative_to(python.parents[1])
    own_site = next(python.parents[1].glob("lib/python*/site-packages"))
    folders = {p.name for p in own_site.iterdir() if p.is_dir() and "dist-info" not in p.name}
    assert folders == {"router", "replicas", "serve_app"}


def test_serve_run_and_deploy_and_shutdown(python: Path, home: Path) -> None:
    port = free_port()
    serve = [python, "-m", "ray.serve.scripts"]
    first, second = sim_config(home, "first", port), sim_config(home, "second", port)
    log = home / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*serve, "run", str(first)],
            env=environment(home),
            cwd=home,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # A shell starts what runs in its background deaf to interrupts, children included.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for_model(process, url, "first", log)
        found = re.search(r"dashboard at \S*?(http://[\d.:]+)", log.read_text())
        assert found is not None
        deploy = [*serve, "deploy", str(second), "-a", found[1]]
        # `serve run` gave its cluster a token; Ray's clients send it where they are told to.
        client = environment(home) | {"RAY_AUTH_MODE": "token"}
        subprocess.run(deploy, env=client, cwd=home, check=True)
        wait_for_model(process, url, "second", log)
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_serve_build_writes_a_config_of_the_local_application(python: Path, home: Path) -> None:
    subprocess.run(
        [python, "-m", "ray.serve.scripts", "build", "serve_app.local:app", "-o", "built.yaml"],
        env=environment(home),
        cwd=home,
        check=True,
        capture_output=True,
    )
    built = yaml.safe_load((home / "built.yaml").read_text())
    application = built["applications"][0]
    assert application["import_path"] == "serve_app.local:app"
    assert {d["name"] for d in application["deployments"]} == {"Ingress", "llm-tiny"}
