"""Cache salts: one tenant's are its own, and everybody computes the same."""

from itertools import combinations

import pytest

from router.core.errors import InvalidRequest
from router.core.types import Tenant
from serve_app.auth import ANONYMOUS
from serve_app.salts import MAX_CLIENT_SALT_CHARACTERS, CacheSalts

ANN, BOB = Tenant("ann"), Tenant("bob")
SALTS = CacheSalts(b"a secret of the server")


def test_salts_differ_by_tenant_secret_and_what_the_client_adds() -> None:
    other = CacheSalts(b"another secret entirely")
    salts = [
        SALTS.salt(ANN),
        SALTS.salt(BOB),
        SALTS.salt(ANN, "x"),
        SALTS.salt(BOB, "x"),
        SALTS.salt(ANN, "y"),
        SALTS.salt(ANONYMOUS, "x"),
        other.salt(ANN),
        other.salt(ANN, "x"),
    ]
    assert all(one != two for one, two in combinations(salts, 2))


def test_two_ingresses_with_one_secret_agree() -> None:
    assert CacheSalts(b"a secret of the server").salt(ANN, "x") == SALTS.salt(ANN, "x")


def test_a_salt_is_never_what_the_client_sent() -> None:
    for tenant in (ANN, ANONYMOUS):
        assert "xyz" not in (SALTS.salt(tenant, "xyz") or "")
    assert "xyz" not in (CacheSalts(None).salt(ANONYMOUS, "xyz") or "")


def test_the_anonymous_tenant_shares_one_unsalted_cache() -> None:
    assert SALTS.salt(ANONYMOUS) is CacheSalts(None).salt(ANONYMOUS) is None


def test_a_client_cannot_send_another_tenants_salt_as_its_own() -> None:
    stolen = SALTS.salt(ANN)
    assert SALTS.salt(BOB, stolen) != stolen


@pytest.mark.parametrize(
    "salt", ["", "../x", "a/../b", "a\0", "a b", "é", "x" * 129, 5, ["x"], {}, True]
)
def test_a_malformed_salt_is_refused(salt: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SALTS.salt(ANN, salt)
    assert refusal.value.param == "cache_salt"


def test_base64_in_both_alphabets_is_accepted() -> None:
    for salt in ("ab+/=", "ab-_", "x" * MAX_CLIENT_SALT_CHARACTERS):
        assert SALTS.salt(ANN, salt)
