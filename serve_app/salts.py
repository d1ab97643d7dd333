"""Cache salts: two requests share cached blocks only if they are the same tenant's.

A tenant's salt is HMAC-SHA256(server secret, tenant), and a salt that a client sends is mixed in,
never used raw: a client that learns another's salt still computes another block hash. The one
anonymous tenant of a server without keys has no salt of its own.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass

from router.core.errors import InvalidRequest
from router.core.types import Tenant
from serve_app.auth import ANONYMOUS

MAX_CLIENT_SALT_CHARACTERS = 128

_CLIENT_SALT = re.compile(rf"[A-Za-z0-9+/=_:-]{{1,{MAX_CLIENT_SALT_CHARACTERS}}}")
_NO_SECRET = b"warmpath/no-secret"


@dataclass(frozen=True, slots=True)
class CacheSalts:
    """`secret` must be the same in every ingress, or equal prompts would not share blocks."""

    secret: bytes | None

    def salt(self, tenant: Tenant, client_salt: object = None) -> str | None:
        """The salt for one request. Raises `InvalidRequest` for a malformed `client_salt`."""
        own = None if tenant == ANONYMOUS else self._digest(b"tenant", tenant.encode())
        if client_salt is None:
            return own
        if not isinstance(client_salt, str) or not _CLIENT_SALT.fullmatch(client_salt):
            raise InvalidRequest(
                f"'cache_salt' must be 1 to {MAX_CLIENT_SALT_CHARACTERS} characters of base64"
                " or '_:-'.",
                param="cache_salt",
            )
        return self._digest(b"client", (own or "").encode(), client_salt.encode())

    def _digest(self, *parts: bytes) -> str:
        framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self.secret or _NO_SECRET, framed, hashlib.sha256).hexdigest()
