"""The context object of the HTTP contract."""

from router.contexts.messages import ContextPage, ContextView, Usage
from serve_app.allow_list import Json


def context_object(view: ContextView) -> Json:
    return {
        "id": view.id,
        "object": "context",
        "kind": view.kind.value,
        "model": view.model,
        "created_at": view.created_at,
        "last_used_at": view.last_used_at,
        "expires_at": view.expires_at,
        "ttl": view.ttl_s,
        "turns": view.turns,
        "tokens": view.tokens,
        "metadata": dict(view.metadata),
        "usage": _usage(view.usage),
        "cache": {"stored_tokens": view.stored_tokens, "stored_bytes": view.stored_bytes},
    }


def page_object(page: ContextPage) -> Json:
    """As OpenAI lists things."""
    return {
        "object": "list",
        "data": [context_object(view) for view in page.views],
        "first_id": page.views[0].id if page.views else None,
        "last_id": page.views[-1].id if page.views else None,
        "has_more": page.has_more,
    }


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
