"""Keys, their files, and the server secret."""

import hashlib
import hmac
from pathlib import Path

import pytest

from router.configuration import AuthConfig
from router.core.errors import ConfigurationError, Unauthenticated
from serve_app.auth import (
    ANONYMOUS,
    SECRET_VARIABLE,
    check_auth,
    fingerprint,
    load_key_ring,
    load_secret,
)

SECRET = "0123456789abcdef"


def line(tenant: str, key: str) -> str:
    return f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"


def ring(*lines: str):
    return load_key_ring(AuthConfig(keys_env="KEYS"), {"KEYS": "\n".join(lines)})


def secret_file(folder: Path, mode: int = 0o600, text: str = SECRET) -> str:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_without_keys_everyone_is_anonymous() -> None:
    keys, secret = check_auth(AuthConfig(), {})
    assert (keys.authenticate(None), secret) == (ANONYMOUS, None)


def test_a_key_names_its_tenant() -> None:
    keys = ring(line("ann", "k1"), "", "# a comment", line("bob", "k2"), line("ann", "k3"))
    assert [keys.authenticate(f"Bearer {key}") for key in ("k1", "k2", "k3")] == [
        "ann",
        "bob",
        "ann",
    ]


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer k2", "Basic k1", "k1", "Bearer k1x"]
)
def test_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        ring(line("ann", "k1")).authenticate(header)


def test_the_scheme_may_be_written_in_any_case() -> None:
    assert ring(line("ann", "k1")).authenticate("bearer k1") == "ann"


def test_every_entry_is_compared_whatever_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """An early end would tell by its time which entry was right."""
    compared, genuine = [], hmac.compare_digest

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return genuine(known, given)

    keys = ring(line("ann", "k1"), line("bob", "k2"), line("cid", "k3"))
    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert keys.authenticate("Bearer k1") == "ann"
    assert len(compared) == 3


@pytest.mark.parametrize(
    "text", ["ann:k1", "ann", "a b:" + "0" * 64, "ann:" + "0" * 63, ":" + "0" * 64]
)
def test_a_malformed_line_dies_with_its_number(text: str) -> None:
    with pytest.raises(ConfigurationError, match="auth.keys_env: line 2"):
        ring(line("ann", "k1"), text)


def test_one_key_for_two_tenants_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="two tenants"):
        ring(line("ann", "k1"), line("bob", "k1"))


def test_a_source_without_a_key_does_not_open_the_door() -> None:
    with pytest.raises(ConfigurationError, match="holds no key"):
        ring("# nothing")


def test_a_missing_source_is_named() -> None:
    with pytest.raises(ConfigurationError, match="auth.keys_env"):
        load_key_ring(AuthConfig(keys_env="KEYS"), {})
    with pytest.raises(ConfigurationError, match="auth.keys_file"):
        load_key_ring(AuthConfig(keys_file="/no/such/file"), {})


def test_keys_without_a_secret_die_at_start() -> None:
    with pytest.raises(ConfigurationError, match=SECRET_VARIABLE):
        check_auth(AuthConfig(keys_env="KEYS"), {"KEYS": line("ann", "k1")})


def test_the_variable_goes_before_the_file(tmp_path: Path) -> None:
    auth = AuthConfig(secret_file=secret_file(tmp_path))
    assert load_secret(auth, {}) == SECRET.encode()
    assert load_secret(auth, {SECRET_VARIABLE: SECRET[::-1]}) == SECRET[::-1].encode()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigurationError, match="0600"):
        load_secret(AuthConfig(secret_file=secret_file(tmp_path, mode)), {})


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="shorter"):
        load_secret(AuthConfig(secret_file=secret_file(tmp_path, text="short\n")), {})


def test_a_fingerprint_tells_secrets_apart_and_nothing_more() -> None:
    assert fingerprint(b"a" * 16) == fingerprint(b"a" * 16) != fingerprint(b"b" * 16)
    assert "a" * 16 not in fingerprint(b"a" * 16)
