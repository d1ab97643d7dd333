"""Which fields of a client's body reach an engine: one rule for each field of each route.

A field without a rule is unknown to the engine's request models and is dropped, as OpenAI drops it.
A test holds these tables against vLLM's models, so that an upgrade which adds a field fails until
the field has a rule. What hides inside a `CHECK` field is judged in `serve_app.content`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from router.core.errors import InvalidRequest

Json = dict[str, object]


class ApiRoute(Enum):
    """The calls that carry a body."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    TOKENIZE = "/tokenize"


class Rule(Enum):
    """What becomes of a field. A refused field may still ask for nothing: null, false, 0, empty."""

    PASS = "pass"
    CHECK = "pass, after a look inside"
    STRIP = "strip"
    REFUSE = "refuse"
    REPLACE = "replace"
    MIX = "mix"


def _rules(rule: Rule, fields: str) -> dict[str, Rule]:
    return dict.fromkeys(fields.split(), rule)


_GENERATE = {
    **_rules(
        Rule.PASS,
        "model stream temperature top_p top_k min_p seed stop stop_token_ids ignore_eos"
        " frequency_penalty presence_penalty repetition_penalty logit_bias skip_special_tokens"
        " include_stop_str_in_output structured_outputs watermarking user",
    ),
    **_rules(
        Rule.REFUSE,
        "kv_transfer_params ec_transfer_params vllm_xargs priority mm_processor_kwargs"
        " media_io_kwargs prompt_embeds chat_template",
    ),
    **_rules(Rule.STRIP, "session_id mm_payload return_mm_kwargs return_token_offsets"),
    **_rules(Rule.REPLACE, "request_id"),
    **_rules(Rule.MIX, "cache_salt"),
}

_TEXT = {
    **_GENERATE,
    **_rules(
        Rule.PASS,
        "n max_tokens min_tokens logprobs prompt_logprobs logprob_token_ids allowed_token_ids"
        " bad_words length_penalty use_beam_search repetition_detection thinking_token_budget"
        " response_format stream_options stream_interval spaces_between_special_tokens"
        " add_special_tokens truncate_prompt_tokens truncation_side return_token_ids"
        " return_tokens_as_token_ids routed_experts_prompt_start echo",
    ),
}

_TEMPLATE = _rules(Rule.CHECK, "chat_template_kwargs tools")

_CHAT = {
    **_TEXT,
    **_TEMPLATE,
    **_rules(
        Rule.PASS,
        "max_completion_tokens top_logprobs tool_choice parallel_tool_calls reasoning_effort"
        " include_reasoning documents add_generation_prompt continue_final_message"
        " return_prompt_text",
    ),
    **_rules(Rule.CHECK, "messages"),
}

_COMPLETIONS = {**_TEXT, **_rules(Rule.PASS, "prompt suffix")}

_RESPONSES = {
    **_GENERATE,
    **_TEMPLATE,
    **_rules(
        Rule.PASS,
        "instructions max_output_tokens max_tool_calls metadata parallel_tool_calls reasoning"
        " include_reasoning service_tier text tool_choice top_logprobs truncation include"
        " prompt_cache_key enable_response_messages",
    ),
    **_rules(Rule.CHECK, "input"),
    **_rules(
        Rule.REFUSE,
        "background conversation previous_response_id previous_input_messages prompt store",
    ),
}

_TOKENIZE = {
    **_TEMPLATE,
    **_rules(
        Rule.PASS,
        "model prompt add_special_tokens add_generation_prompt continue_final_message"
        " return_token_strs",
    ),
    **_rules(Rule.CHECK, "messages"),
    **_rules(Rule.REFUSE, "chat_template media_io_kwargs mm_processor_kwargs"),
}

ALLOW_LIST: Mapping[ApiRoute, Mapping[str, Rule]] = MappingProxyType(
    {
        ApiRoute.CHAT: MappingProxyType(_CHAT),
        ApiRoute.COMPLETIONS: MappingProxyType(_COMPLETIONS),
        ApiRoute.RESPONSES: MappingProxyType(_RESPONSES),
        ApiRoute.TOKENIZE: MappingProxyType(_TOKENIZE),
    }
)

FIXED: Mapping[ApiRoute, Mapping[str, object]] = MappingProxyType(
    {ApiRoute.RESPONSES: MappingProxyType({"store": False})}
)
"""What every body of a route carries, whatever the client wrote."""

UNRENDERED = frozenset({"echo", "return_prompt_text", "suffix"})
"""Fields for which the engine needs the text itself: token ids cannot stand for it."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """A body after its rules. `client_salt` is unvalidated and must never be used raw."""

    body: Json
    client_salt: object
    needs_render: bool


def allow(route: ApiRoute, body: Mapping[str, object]) -> Allowed:
    """Applies the route's rules; `body` is not changed. Raises `InvalidRequest` for a refusal."""
    rules = ALLOW_LIST[route]
    kept = {name: value for name, value in body.items() if _passes(rules.get(name), name, value)}
    return Allowed(
        body=kept | dict(FIXED.get(route, {})),
        client_salt=body.get("cache_salt") if rules.get("cache_salt") is Rule.MIX else None,
        needs_render=any(kept.get(name) for name in UNRENDERED),
    )


def _passes(rule: Rule | None, name: str, value: object) -> bool:
    if rule is Rule.REFUSE and value:
        raise InvalidRequest(
            f"This value of '{name}' is not supported here; leave the field out.",
            param=name,
            code="unsupported_parameter",
        )
    return rule in (Rule.PASS, Rule.CHECK)
