"""Keys, tenants and their caches."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import pytest

from tests.serve.sim_app import FAST, App, sim_model

pytestmark = pytest.mark.ray

KEYS = {"ann": "key-of-ann", "bob": "key-of-bob"}
SECRET = "a-secret-of-sixteen-and-more-bytes"
_prompts = count(1)


def line(tenant: str) -> str:
    return f"{tenant}:{hashlib.sha256(KEYS[tenant].encode()).hexdigest()}"


@pytest.fixture(scope="module")
def keyed(deploy: Callable[..., App], tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("auth")
    (folder / "keys").write_text("\n".join(map(line, KEYS)))
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    yield deploy(
        "keyed",
        models=[sim_model("fast", FAST)],
        ingress={"cpus_per_replica": 0},
        auth={"keys_file": str(folder / "keys"), "secret_file": str(secret)},
    )


@pytest.fixture
def door(keyed: App) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed.url, timeout=30) as client:
        yield client


def bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


def fresh_prompt() -> list[int]:
    """Two full blocks and a token, unlike any other test's."""
    return [next(_prompts) + 10, *range(200, 264)]


def cached(
    client: httpx.Client, prompt: list[int], tenant: str | None = None, salt: str | None = None
) -> int:
    """How many of the prompt's tokens the engine had, asked by this tenant with this salt."""
    body: dict[str, object] = {"prompt": prompt, "max_tokens": 1, "model": "fast"}
    body |= {} if salt is None else {"cache_salt": salt}
    headers = bearer(tenant) if tenant else {}
    answer = client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fast"),
    ("GET", "/openapi.json"),
    ("GET", "/no-such-path"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("authorization", [None, "Bearer nope", "Basic key-of-ann", "Bearer"])
def test_without_a_key_every_path_is_closed(
    door: httpx.Client, method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = door.request(method, path, headers=headers, json={"model": "fast"})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_health_needs_no_key(door: httpx.Client) -> None:
    assert door.get("/health").status_code == 200


def test_a_key_opens(door: httpx.Client) -> None:
    assert door.get("/v1/models", headers=bearer("ann")).status_code == 200


def test_a_tenant_finds_its_own_cache_and_nobody_elses(door: httpx.Client) -> None:
    prompt = fresh_prompt()
    assert cached(door, prompt, "ann") == 0
    assert cached(door, prompt, "ann") == 64
    assert cached(door, prompt, "bob") == 0


def test_a_stolen_salt_opens_no_cache(door: httpx.Client) -> None:
    """With the same key the same salt must hit, or the test would prove nothing."""
    prompt = fresh_prompt()
    assert cached(door, prompt, "ann", "salt-of-ann") == 0
    assert cached(door, prompt, "ann", "salt-of-ann") == 64
    assert cached(door, prompt, "bob", "salt-of-ann") == 0
    assert cached(door, prompt, "ann") == 0
    assert cached(door, prompt, "ann", "another") == 0


@pytest.mark.parametrize("salt", ["../x", "a\0b", "x" * 1_000_000, "", 7, ["a"], "é"])
def test_a_malformed_salt_is_refused(door: httpx.Client, salt: object) -> None:
    body = {"model": "fast", "prompt": "a", "cache_salt": salt}
    answer = door.post("/v1/completions", json=body, headers=bearer("ann"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")
    assert len(answer.content) < 1000


def test_without_keys_all_share_one_cache_unless_they_bring_a_salt(client: httpx.Client) -> None:
    prompt = fresh_prompt()

    def again(salt: str | None) -> list[int]:
        body: dict[str, object] = {"model": "slow", "prompt": prompt, "max_tokens": 1}
        body |= {} if salt is None else {"cache_salt": salt}
        answers = [client.post("/v1/completions", json=body).json() for _ in "ab"]
        return [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]

    assert again(None) == [0, 64]
    assert again("mine") == [0, 64]


def test_a_salt_never_reaches_an_engine_raw(door: httpx.Client, keyed: App) -> None:
    """What the replica was given is neither the client's salt nor the tenant's name."""
    cached(door, fresh_prompt(), "ann", "salt-of-ann")
    salt = keyed.replicas("fast").last_salt.remote().result(timeout_s=10)
    assert len(salt) == 64
    assert "ann" not in salt
