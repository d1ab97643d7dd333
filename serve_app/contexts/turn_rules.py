"""What a turn may not ask for: a context has one continuation, which stands for all it was told."""

from router.contexts.messages import Kind
from router.core.errors import InvalidRequest, ToolsChanged
from serve_app.allow_list import ApiRoute, Json
from serve_app.contexts.document import Document

KINDS = {ApiRoute.CHAT: Kind.CHAT, ApiRoute.COMPLETIONS: Kind.PROMPT}

_SINGLE = ("n", "best_of")
_REFUSED = (
    "echo",
    "suffix",
    "use_beam_search",
    "continue_final_message",
    "return_prompt_text",
    "truncate_prompt_tokens",
)
"""Fields that choose another text than the one that is continued, or cut it."""


def kind_of(route: ApiRoute) -> Kind:
    """Raises `InvalidRequest` for a route that has no turns."""
    kind = KINDS.get(route)
    if kind is None:
        raise InvalidRequest(
            f"A context cannot be used with {route.value}: use {ApiRoute.CHAT.value} or"
            f" {ApiRoute.COMPLETIONS.value}.",
            param="x-session-id",
        )
    return kind


def check_turn(kind: Kind, body: Json) -> None:
    """Raises `InvalidRequest` for what no turn may ask for."""
    for name in _SINGLE:
        value = body.get(name)
        if value is not None and value != 1:
            raise InvalidRequest(f"'{name}' must be 1 in a context.", param=name)
    for name in _REFUSED:
        if body.get(name) not in (None, False):
            raise InvalidRequest(f"'{name}' is not accepted in a context.", param=name)
    if kind is Kind.CHAT:
        _check_messages(body)
    else:
        check_prompt(body.get("prompt"))


def check_prompt(prompt: object) -> None:
    """One text, or the token ids of one."""
    is_one = isinstance(prompt, str) or (
        isinstance(prompt, list) and all(isinstance(item, int) for item in prompt)
    )
    if not is_one:
        raise InvalidRequest(
            "'prompt' must be one text or one list of token ids in a context.", param="prompt"
        )


def with_own_settings(body: Json, document: Document) -> Json:
    """The body with the context's tools and template arguments where it names none.

    Raises `ToolsChanged`. A turn's own template arguments hold for that turn.
    """
    own, tools = document.settings.tools, body.get("tools")
    if tools is not None and (tools or None) != own:
        raise ToolsChanged("A context keeps the tools that it was created with.", param="tools")
    arguments = body.get("chat_template_kwargs")
    if arguments is None:
        arguments = document.settings.chat_template_kwargs
    return body | {"tools": own, "chat_template_kwargs": arguments}


def _check_messages(body: Json) -> None:
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise InvalidRequest("'messages' must hold what is new.", param="messages")
    if body.get("add_generation_prompt") not in (None, True):
        raise InvalidRequest(
            "'add_generation_prompt' must be true in a context.", param="add_generation_prompt"
        )
