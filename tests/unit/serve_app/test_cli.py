"""The command `warmpath`, called as a user calls it."""

import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from router.configuration import AuthConfig
from router.core.errors import ConfigurationError, Unauthenticated
from serve_app import cli
from serve_app.auth import check_auth
from serve_app.launch import Flag, check_port_free, fast_path, with_flags

SIM = Path(__file__).parents[3] / "configs" / "sim.yaml"


def test_check_says_what_a_config_serves(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(SIM)]) == 0
    assert "warmpath on 127.0.0.1:8000 serves sim (sim)" in capsys.readouterr().out


def test_check_of_a_wrong_config_names_the_key_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SIM.read_text().replace("replicas: 8", "replicas: none"))
    assert cli.main(["check", str(path)]) == 2
    assert "applications.warmpath.args.models[0].replicas: " in capsys.readouterr().err


def test_check_says_that_the_network_can_reach_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SIM.read_text().replace("127.0.0.1", "0.0.0.0"))
    assert cli.main(["check", str(path)]) == 0
    assert "can be reached from the network" in capsys.readouterr().out


def test_serve_refuses_the_network_without_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SIM.read_text().replace("127.0.0.1", "0.0.0.0"))
    assert cli.main(["serve", str(path)]) == 2
    assert "http_options.host: " in capsys.readouterr().err


def test_fresh_key_opens_the_door_for_its_tenant_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, secret = tmp_path / "keys", tmp_path / "secret"
    assert cli.main(["secret", "new", str(secret)]) == 0
    capsys.readouterr()
    printed = []
    for tenant in ("acme", "globex"):
        assert cli.main(["keys", "add", tenant, "--file", str(keys)]) == 0
        printed.append(capsys.readouterr().out.strip())
    ring, _ = check_auth(AuthConfig(keys_file=str(keys), secret_file=str(secret)), {})
    assert [ring.authenticate(f"Bearer {key}") for key in printed] == ["acme", "globex"]
    with pytest.raises(Unauthenticated):
        ring.authenticate("Bearer wp-guess")


def test_key_is_stored_as_a_digest_in_a_private_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    cli.main(["keys", "add", "acme", "--file", str(path)])
    assert capsys.readouterr().out.strip() not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_key_file_that_others_may_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    path.touch(mode=0o644)
    path.chmod(0o644)
    assert cli.main(["keys", "add", "acme", "--file", str(path)]) == 2
    assert path.read_text() == ""
    assert "chmod 600" in capsys.readouterr().err


def test_secret_is_private_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret"
    assert cli.main(["secret", "new", str(path)]) == 0
    first = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cli.main(["secret", "new", str(path)]) == 2
    assert path.read_text() == first
    assert first.strip() not in capsys.readouterr().out


@pytest.mark.parametrize("tenant", ["", "a:b", "../x", "a b", "x" * 65])
def test_tenant_name_that_would_break_the_file_is_refused(tmp_path: Path, tenant: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["keys", "add", tenant, "--file", str(tmp_path / "keys")])


def test_users_own_flag_wins_over_the_fast_path() -> None:
    flag = Flag("RAY_SERVE_ENABLE_HA_PROXY", "1", "")
    assert with_flags({"RAY_SERVE_ENABLE_HA_PROXY": "0"}, [flag]) == {flag.name: "0"}
    assert with_flags({}, [flag]) == {flag.name: "1"}


def test_every_file_of_haproxy_lies_in_the_private_folder(tmp_path: Path) -> None:
    files = [flag for flag in fast_path(tmp_path) if flag.name.startswith("RAY_SERVE_HAPROXY_")]
    assert len(files) == 5
    assert all(Path(flag.value).is_relative_to(tmp_path) for flag in files)


def test_port_in_use_is_named_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError) as caught:
            check_port_free("127.0.0.1", taken.getsockname()[1])
    assert caught.value.key == "http_options.port"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_request_to_stop_reaches_the_child_as_an_interrupt_and_its_status_is_ours(
    number: signal.Signals,
) -> None:
    child = textwrap.dedent("""
        import time
        try:
            print("up", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            raise SystemExit(7)
    """)
    parent = textwrap.dedent(f"""
        import os, sys
        from serve_app.launch import run_until_stopped
        sys.exit(run_until_stopped([sys.executable, "-c", {child!r}], os.environ))
    """)
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(20) == 7


def test_what_the_child_leaves_in_its_group_dies_with_it() -> None:
    leaver = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    parent = textwrap.dedent(f"""
        import os, sys
        from serve_app.launch import run_until_stopped
        sys.exit(run_until_stopped([sys.executable, "-c", {leaver!r}], os.environ))
    """)
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, check=True)
    status = Path(f"/proc/{int(done.stdout)}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"
