"""API keys: who is asking. Keys are known only by their SHA-256, and no key configured means that
everyone is one anonymous tenant.
"""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from router.configuration import AuthConfig
from router.core.errors import ConfigurationError, Unauthenticated
from router.core.types import Tenant

ANONYMOUS = Tenant("anonymous")
SECRET_VARIABLE = "WARMPATH_SECRET"
MIN_SECRET_BYTES = 16

_ENTRY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Every known key's digest with its tenant. Empty: the door is open, nobody is named."""

    entries: tuple[tuple[Tenant, bytes], ...] = ()

    def authenticate(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization` header; `ANONYMOUS` where there are no keys.

        Raises `Unauthenticated`. Looks at every entry whatever the outcome, so that time tells
        nothing: O(keys).
        """
        if not self.entries:
            return ANONYMOUS
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found: Tenant | None = None
        for tenant, known in self.entries:
            if hmac.compare_digest(known, digest):
                found = tenant
        if found is None or scheme.lower() != "bearer":
            raise Unauthenticated("A valid API key is needed.", code="invalid_api_key")
        return found


def load_key_ring(auth: AuthConfig, environ: Mapping[str, str]) -> KeyRing:
    """Reads what `auth` names. Raises `ConfigurationError`, also where a source holds no key."""
    entries: dict[bytes, Tenant] = {}
    for key, text in _sources(auth, environ):
        found = list(_parse(key, text))
        if not found:
            raise ConfigurationError(key, "holds no key")
        for tenant, digest in found:
            if entries.setdefault(digest, tenant) != tenant:
                raise ConfigurationError(key, "gives one key to two tenants")
    return KeyRing(tuple((tenant, digest) for digest, tenant in entries.items()))


def load_secret(auth: AuthConfig, environ: Mapping[str, str]) -> bytes | None:
    """The server secret, or None where none is given. Raises `ConfigurationError`."""
    if value := environ.get(SECRET_VARIABLE):
        return _checked_secret(SECRET_VARIABLE, value.encode())
    if auth.secret_file is None:
        return None
    path = Path(auth.secret_file)
    mode = _read_mode(path)
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError("auth.secret_file", "must be readable by its owner only (0600)")
    return _checked_secret("auth.secret_file", path.read_bytes().strip())


def fingerprint(secret: bytes) -> str:
    """Tells two secrets apart without telling either."""
    return hmac.new(secret, b"warmpath/fingerprint", hashlib.sha256).hexdigest()[:16]


def check_auth(
    auth: AuthConfig, environ: Mapping[str, str] = os.environ
) -> tuple[KeyRing, bytes | None]:
    """Keys and secret together: keys without a secret would leave tenants unsalted."""
    keys, secret = load_key_ring(auth, environ), load_secret(auth, environ)
    if keys.entries and secret is None:
        raise ConfigurationError(
            "auth.secret_file", f"API keys need a server secret here or in {SECRET_VARIABLE}"
        )
    return keys, secret


def _sources(auth: AuthConfig, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if auth.keys_file is not None:
        try:
            yield "auth.keys_file", Path(auth.keys_file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError("auth.keys_file", "cannot be read") from error
    if auth.keys_env is not None:
        if auth.keys_env not in environ:
            raise ConfigurationError("auth.keys_env", f"{auth.keys_env} is not set")
        yield "auth.keys_env", environ[auth.keys_env]


def _parse(key: str, text: str) -> Iterator[tuple[Tenant, bytes]]:
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ConfigurationError(key, f"line {number} is not 'tenant:sha256-of-key'")
        yield Tenant(match[1]), bytes.fromhex(match[2])


def _read_mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError as error:
        raise ConfigurationError("auth.secret_file", "cannot be read") from error


def _checked_secret(key: str, secret: bytes) -> bytes:
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigurationError(key, f"is shorter than {MIN_SECRET_BYTES} bytes")
    return secret
