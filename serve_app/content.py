"""What may stand inside messages, inputs, tools and template arguments.

Two things must not pass: an address that the server would fetch for the client, and a value that
takes the place of what the template or the engine gets from elsewhere. Shapes are not judged here,
vLLM's request models do that afterwards; so whatever could hide a part is refused, never skipped,
and every part is looked at even where an early one has settled the answer.
"""

from collections.abc import Mapping
from enum import Enum

from router.core.errors import InvalidRequest
from serve_app.allow_list import ApiRoute, Json


class PartRule(Enum):
    """`MEDIA` parts need a model that takes media, and bring their bytes along."""

    TEXT = "text"
    MEDIA = "media"
    REFUSE = "refuse"


PART_RULES: Mapping[str, PartRule] = {
    **dict.fromkeys(
        (
            "text",
            "refusal",
            "thinking",
            "input_text",
            "output_text",
            "summary_text",
            "reasoning_text",
            "tool_reference",
        ),
        PartRule.TEXT,
    ),
    **dict.fromkeys(
        ("image_url", "input_image", "audio_url", "input_audio", "video_url"), PartRule.MEDIA
    ),
    **dict.fromkeys(
        ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"),
        PartRule.REFUSE,
    ),
}

ITEM_TYPES = frozenset({"message", "function_call", "function_call_output", "reasoning"})
"""Input items of the Responses call that name nothing stored and nothing to fetch."""

RESERVED_TEMPLATE_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of the tokenizer's own `apply_chat_template`; a template's variables are free."""

_MEDIA_KEYS = frozenset(name for name, rule in PART_RULES.items() if rule is not PartRule.TEXT)
_FORBIDDEN_KEYS = frozenset({"uuid", "file_id", "file_url"})
_ADDRESS_KEYS = {"input_image": "image_url"}
"""Where a media part's address stands, if not under its own type's name."""
_LISTS = ("content", "output", "summary")

MAX_PARTS = 256
"""Parts of one message: vLLM's models try each part against every type that it could have."""


def check_content(route: ApiRoute, body: Json, *, accepts_media: bool) -> bool:
    """True where a part is media. Raises `InvalidRequest` for what may not pass. O(parts)."""
    _check_template_arguments(body.get("chat_template_kwargs"))
    if route is ApiRoute.RESPONSES:
        _check_tools(body.get("tools"))
        return _check_items(body.get("input"), "input", accepts_media)
    return _check_items(body.get("messages"), "messages", accepts_media)


def _check_template_arguments(arguments: object) -> None:
    if not isinstance(arguments, dict):
        return
    reserved = sorted(RESERVED_TEMPLATE_ARGUMENTS & arguments.keys())
    if reserved:
        raise InvalidRequest(
            f"'{reserved[0]}' is not a template variable.", param="chat_template_kwargs"
        )


def _check_tools(tools: object) -> None:
    """Hosted tools (search, code, MCP) would act from inside the server's network."""
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise InvalidRequest("Only tools of type 'function' are served.", param="tools")


def _check_items(items: object, param: str, accepts_media: bool) -> bool:
    if not isinstance(items, list):
        return False
    return sum(_check_item(item, param, accepts_media) for item in items) > 0


def _check_item(item: object, param: str, accepts_media: bool) -> bool:
    if not isinstance(item, dict):
        raise InvalidRequest("Every message must be an object.", param=param)
    if param == "input" and item.get("type", "message") not in ITEM_TYPES:
        raise InvalidRequest("An input item has a type that is not served.", param=param)
    return sum(_check_parts(item.get(key), param, accepts_media) for key in _LISTS) > 0


def _check_parts(parts: object, param: str, accepts_media: bool) -> bool:
    if parts is None or isinstance(parts, str):
        return False
    if not isinstance(parts, list):
        raise InvalidRequest("Content must be a text or a list of parts.", param=param)
    if len(parts) > MAX_PARTS:
        raise InvalidRequest(f"A message has more than {MAX_PARTS} parts.", param=param)
    return sum(_check_part(part, param, accepts_media) for part in parts) > 0


def _check_part(part: object, param: str, accepts_media: bool) -> bool:
    if isinstance(part, str):
        return False
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise InvalidRequest("A content part must be an object with a type.", param=param)
    rule = PART_RULES.get(kind, PartRule.REFUSE)
    if rule is PartRule.REFUSE:
        raise InvalidRequest("A content part has a type that is not served.", param=param)
    if part.keys() & (_FORBIDDEN_KEYS | (_MEDIA_KEYS - {_ADDRESS_KEYS.get(kind, kind)})):
        raise InvalidRequest("A content part has a field that is not served.", param=param)
    if rule is PartRule.TEXT:
        return False
    _check_media(kind, part, param, accepts_media)
    return True


def _check_media(kind: str, part: Json, param: str, accepts_media: bool) -> None:
    if not accepts_media:
        raise InvalidRequest("This model takes text only.", param=param)
    address = part.get(_ADDRESS_KEYS.get(kind, kind))
    if isinstance(address, dict):
        address = address.get("url", address.get("data"))
    if not isinstance(address, str) or (
        kind != "input_audio" and not address.lower().startswith("data:")
    ):
        raise InvalidRequest("Media must be sent in the request, as a data: URL.", param=param)
