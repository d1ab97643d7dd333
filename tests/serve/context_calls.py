"""Contexts as a client uses them, over HTTP. No cluster is started here."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

KEYS = {tenant: f"key-of-{tenant}" for tenant in ("ann", "bob", "eve")}
QUOTA = 150
"""Contexts of one tenant."""
SECRET = "a-secret-of-sixteen-and-more-bytes"
Json = dict[str, Any]


def key_lines() -> str:
    digests = {tenant: hashlib.sha256(key.encode()).hexdigest() for tenant, key in KEYS.items()}
    return "\n".join(f"{tenant}:{digest}" for tenant, digest in digests.items())


def bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def fault(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error in OpenAI's shape."""
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error["code"]


def events(text: str) -> list[str]:
    """The data of each server-sent event."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


@dataclass(slots=True)
class Caller:
    """One tenant's client of one model."""

    http: httpx.Client
    model: str
    tenant: str = "ann"
    options: Json = field(default_factory=lambda: {"max_tokens": 4, "temperature": 0})

    def call(self, method: str, path: str = "", **more: Any) -> httpx.Response:
        """Below `/v1/context`."""
        headers = bearer(self.tenant) | more.pop("headers", {})
        return self.http.request(method, f"/v1/context{path}", headers=headers, **more)

    def create(self, **body: Any) -> httpx.Response:
        headers = body.pop("headers", {})
        return self.call("POST", json={"model": self.model} | body, headers=headers)

    def created(self, **body: Any) -> str:
        answer = self.create(**body)
        assert answer.status_code == 201, answer.text
        assert answer.headers["x-session-id"] == answer.json()["id"]
        return str(answer.json()["id"])

    def get(self, name: str) -> Json:
        answer = self.call("GET", f"/{name}")
        assert answer.status_code == 200, answer.text
        seen: Json = answer.json()
        return seen

    def chat(self, name: str, *messages: Json | str, **body: Any) -> httpx.Response:
        said = [user(message) if isinstance(message, str) else message for message in messages]
        return self.turn("/v1/chat/completions", name, {"messages": said} | body)

    def complete(self, name: str, prompt: object, **body: Any) -> httpx.Response:
        return self.turn("/v1/completions", name, {"prompt": prompt} | body)

    def turn(self, path: str, name: str, body: Json) -> httpx.Response:
        headers, body = self.turn_request(name, body)
        return self.http.post(path, json=body, headers=headers)

    def turn_request(self, name: str, body: Json) -> tuple[dict[str, str], Json]:
        headers = bearer(self.tenant) | {"x-session-id": name} | body.pop("headers", {})
        return headers, {"model": self.model} | self.options | body


def usage_of(answer: httpx.Response) -> Json:
    """Of an answer, streamed with its usage or not."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, last, done = events(answer.text)
        assert done == "[DONE]"
        document = json.loads(last)
    else:
        document = answer.json()
    usage: Json = document["usage"]
    return usage


def plain(usage: Json) -> Json:
    """Without what engines add to OpenAI's own."""
    cached = {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]}
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: usage[name] for name in names} | {"prompt_tokens_details": cached}


STREAMED: Json = {"stream": True, "stream_options": {"include_usage": True}}
WHOLE: Json = {}
