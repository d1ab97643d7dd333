"""What may stand inside messages, inputs and template arguments."""

import pytest

from router.core.errors import InvalidRequest
from serve_app.allow_list import ApiRoute
from serve_app.content import (
    MAX_PARTS,
    PART_RULES,
    RESERVED_TEMPLATE_ARGUMENTS,
    PartRule,
    check_content,
)

PIXEL = "data:image/png;base64,AAAA"


def chat(*parts: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image(url: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_every_part_that_vllm_parses_has_a_rule() -> None:
    from vllm.renderers.chat_utils import MM_PARSER_MAP

    assert MM_PARSER_MAP.keys() - PART_RULES.keys() == set()


def test_every_argument_of_the_tokenizers_template_call_is_reserved() -> None:
    """Only variables of the template itself are the client's to set."""
    from vllm.renderers.hf import _get_hf_base_chat_template_params

    assert _get_hf_base_chat_template_params() - RESERVED_TEMPLATE_ARGUMENTS == set()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "a"},
        {"type": "refusal", "refusal": "a"},
        "a bare text",
    ],
)
def test_text_passes_everywhere(part: object) -> None:
    assert check_content(ApiRoute.CHAT, chat(part), accepts_media=False) is False


def test_media_that_bring_their_bytes_pass_where_the_model_takes_media() -> None:
    assert check_content(ApiRoute.CHAT, chat(image(PIXEL)), accepts_media=True) is True
    with pytest.raises(InvalidRequest):
        check_content(ApiRoute.CHAT, chat(image(PIXEL)), accepts_media=False)


REFUSED = {
    "web-address": image("https://10.0.0.1/"),
    "upper-case-address": image("HTTP://10.0.0.1/"),
    "file-address": image("file:///etc/passwd"),
    "no-address": image(None),
    "untyped": {"image_url": PIXEL},
    "unknown-type": {"type": "hologram", "hologram": PIXEL},
    "typed-by-a-list": {"type": ["image_url"], "image_url": PIXEL},
    "text-that-carries-an-image": {"type": "text", "text": "a", "image_url": "http://a"},
    "known-by-uuid": {**image(PIXEL), "uuid": "somebody-elses"},
    "embeddings": {"type": "image_embeds", "image_embeds": "AAAA"},
    "prompt-embeddings": {"type": "prompt_embeds", "data": "AAAA"},
    "two-media-in-one": {**image(PIXEL), "video_url": {"url": "http://a"}},
    "stored-file": {"type": "input_image", "file_id": "file-1"},
    "a-number": 5,
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("is_last", [False, True])
def test_nothing_is_fetched_for_a_client(case: str, is_last: bool) -> None:
    """Also behind a part that is fine, on a model that takes media."""
    parts = [image(PIXEL), REFUSED[case]] if is_last else [REFUSED[case], image(PIXEL)]
    with pytest.raises(InvalidRequest):
        check_content(ApiRoute.CHAT, chat(*parts), accepts_media=True)


def test_parts_in_a_responses_input_follow_the_same_rules() -> None:
    for address in (PIXEL, "http://10.0.0.1"):
        part = {"type": "input_image", "image_url": address}
        body = {"input": [{"role": "user", "content": [part]}]}
        if address is PIXEL:
            assert check_content(ApiRoute.RESPONSES, body, accepts_media=True)
        else:
            with pytest.raises(InvalidRequest):
                check_content(ApiRoute.RESPONSES, body, accepts_media=True)


def test_the_output_of_a_tool_is_looked_into_as_well() -> None:
    output = [{"type": "input_image", "image_url": "http://10.0.0.1"}]
    body = {"input": [{"type": "function_call_output", "call_id": "1", "output": output}]}
    with pytest.raises(InvalidRequest):
        check_content(ApiRoute.RESPONSES, body, accepts_media=True)


@pytest.mark.parametrize("kind", ["item_reference", "computer_call_output", "mcp_call", 5, None])
def test_input_items_that_name_something_stored_or_hosted_are_refused(kind: object) -> None:
    with pytest.raises(InvalidRequest):
        check_content(ApiRoute.RESPONSES, {"input": [{"type": kind}]}, accepts_media=True)


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "conversation"])
def test_a_template_argument_cannot_replace_what_the_server_sets(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_content(ApiRoute.CHAT, {"chat_template_kwargs": {name: "x"}}, accepts_media=False)


def test_a_variable_of_the_template_passes() -> None:
    body = {"chat_template_kwargs": {"enable_thinking": False}}
    assert not check_content(ApiRoute.CHAT, body, accepts_media=False)


def test_a_message_of_very_many_parts_is_refused() -> None:
    part = {"type": "text", "text": "a"}
    check_content(ApiRoute.CHAT, chat(*[part] * MAX_PARTS), accepts_media=False)
    with pytest.raises(InvalidRequest):
        check_content(ApiRoute.CHAT, chat(*[part] * (MAX_PARTS + 1)), accepts_media=False)


def test_no_part_is_both_text_and_media() -> None:
    assert set(PART_RULES.values()) == set(PartRule)
