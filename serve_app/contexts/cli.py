"""`warmpath contexts`: a tenant's own contexts from a terminal, and the end of their manager.

Ids are shown shortened.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from serve_app.contexts.parameters import MAX_PAGE, shortened

URL_VARIABLE = "WARMPATH_URL"
KEY_VARIABLE = "WARMPATH_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 30

Json = dict[str, Any]
_COLUMNS = ("id", "kind", "model", "turns", "tokens", "ttl", "expires_at")


class Refused(Exception):
    """The server's words, or why it was not reached."""


def add_contexts(commands: Any) -> None:
    """Adds the command to the parser's own; `commands` are argparse's sub-parsers."""
    contexts = commands.add_parser("contexts", help="your contexts on a running server")
    actions = contexts.add_subparsers(required=True, metavar="ACTION")
    _add_action(actions, "list", _list, "one line for each, newest first")
    _add_action(actions, "show", _show, "all that the server says of one", takes_id=True)
    _add_action(actions, "delete", _delete, "delete one", takes_id=True)
    _add_stop(actions)


def _add_stop(actions: Any) -> None:
    stop = actions.add_parser("stop", help="stop the manager that a removed application left")
    stop.add_argument("application")
    stop.add_argument("--address", default="auto", help="the Ray cluster's, as ray.init takes it")
    stop.set_defaults(command=_stop)


def _stop(options: argparse.Namespace) -> int:
    """1 where there was none. The journal stays: the application finds its contexts again."""
    import ray

    from router.serve.context_generations import remove_contexts

    ray.init(options.address, log_to_driver=False, logging_level="error")
    stopped = remove_contexts(options.application)
    print(f"{options.application}: {stopped} context managers stopped")
    return 0 if stopped else 1


def _add_action(
    actions: Any,
    name: str,
    act: Callable[[httpx.Client, argparse.Namespace], None],
    help_text: str,
    *,
    takes_id: bool = False,
) -> None:
    action = actions.add_parser(name, help=help_text)
    if takes_id:
        action.add_argument("id", help="an id or the beginning of one")
    action.add_argument("--url", help=f"the server's; else ${URL_VARIABLE}, else {DEFAULT_URL}")
    action.add_argument("--api-key", help=f"else ${KEY_VARIABLE}")
    action.set_defaults(command=lambda options: _run(act, options))


def _run(
    act: Callable[[httpx.Client, argparse.Namespace], None], options: argparse.Namespace
) -> int:
    """0 when it was done, 1 where the server refused or was not there."""
    key = options.api_key or os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S) as client:
            act(client, options)
    except (Refused, httpx.HTTPError, httpx.InvalidURL) as error:
        print(f"warmpath: {error}", file=sys.stderr)
        return 1
    return 0


def _list(client: httpx.Client, options: argparse.Namespace) -> None:
    print(" ".join(f"{name:>12}" for name in _COLUMNS))
    for context in _all(client):
        row = context | {"id": shortened(context["id"])}
        print(" ".join(f"{_text(row[name]):>12}" for name in _COLUMNS))


def _show(client: httpx.Client, options: argparse.Namespace) -> None:
    context = _call(client, "GET", f"/{_found(client, options.id)}")
    for name, value in (context | {"id": shortened(context["id"])}).items():
        print(f"{name}: {_text(value)}")


def _delete(client: httpx.Client, options: argparse.Namespace) -> None:
    found = _found(client, options.id)
    _call(client, "DELETE", f"/{found}")
    print(f"{shortened(found)}: deleted")


def _found(client: httpx.Client, beginning: str) -> str:
    """The one id that begins so, be it written with the mark that shortens it."""
    start = beginning.removesuffix("…")
    found = [context["id"] for context in _all(client) if context["id"].startswith(start)]
    if len(found) != 1:
        how_many = "several contexts" if found else "no context"
        raise Refused(f"{how_many} of yours begin with {shortened(start)}")
    return str(found[0])


def _all(client: httpx.Client) -> Iterator[Json]:
    query = {"limit": str(MAX_PAGE)}
    while True:
        page = _call(client, "GET", "", query)
        yield from page["data"]
        if not page["has_more"]:
            return
        query["after"] = page["last_id"]


def _call(client: httpx.Client, method: str, path: str, query: dict[str, str] | None = None) -> Any:
    answer = client.request(method, f"/v1/context{path}", params=query)
    if answer.is_success:
        return answer.json()
    try:
        raise Refused(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        raise Refused(f"the server answered {answer.status_code}") from None


def _text(value: object) -> str:
    return "-" if value is None else str(value)
