"""A model's chat template, applied twice to see what a turn adds. Imports vLLM.

It is vLLM's own renderer up to the text; only what is new is tokenised.
"""

from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMClientError
from vllm.renderers import ChatParams, TokenizeParams, merge_kwargs
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.utils.mistral import is_mistral_tokenizer

from serve_app.contexts.delta import common_end, delta

Messages = list[dict[str, Any]]


class ChatTemplate:
    """Of the renderer `online`."""

    def __init__(self, online: OnlineRenderer) -> None:
        self._online = online

    async def delta_ids(
        self, request: ChatCompletionRequest, before: Messages, new: Messages, *, is_answered: bool
    ) -> list[int] | None:
        """The ids with which `new` continues `before`, up to where the model's answer begins.

        `is_answered`: the model wrote the last of `before`, and its ids end where its text does.
        None where the template rewrites history, as OpenAI's harmony format always does.
        """
        if self._online.use_harmony:
            return None
        closing = await self._closing(request) if is_answered else None
        told = await self._apply(request, before, is_open=False)
        asked = await self._apply(request, before + new, is_open=True)
        added = delta(told, asked, told[:0] if closing is None else closing)
        return None if added is None else await self._token_ids(added)

    async def _closing(self, request: ChatCompletionRequest) -> Any:
        """What the template puts behind an answer: that in which two answers end alike.

        None where it refuses so short a chat.
        """
        asked = {"role": "user", "content": "a"}
        try:
            one, other = [
                await self._apply(
                    request, [asked, {"role": "assistant", "content": content}], is_open=False
                )
                for content in ("a", "b")
            ]
        except VLLMClientError:
            return None
        return common_end(one, other)

    async def _apply(
        self, request: ChatCompletionRequest, messages: Messages, *, is_open: bool
    ) -> Any:
        """Text, or ids from tokenizers that have a format of their own."""
        params = self._params(request, is_open=is_open)
        _, prompt = await self._online.renderer.render_messages_async(messages, params)
        return prompt["prompt"] if "prompt" in prompt else prompt["prompt_token_ids"]

    def _params(self, request: ChatCompletionRequest, *, is_open: bool) -> ChatParams:
        """What vLLM's own rendering of the request would use."""
        online = self._online
        is_without = request.tool_choice == "none" and online.exclude_tools_when_tool_choice_none
        tools = None if is_without else request.tools
        defaults = merge_kwargs(
            online.default_chat_template_kwargs,
            {
                "tools": tools and [tool.model_dump() for tool in tools],
                "tokenize": is_mistral_tokenizer(online.renderer.tokenizer),
            },
        )
        shown = request.model_copy(update={"add_generation_prompt": is_open})
        params: ChatParams = shown.build_chat_params(
            online.chat_template, online.chat_template_content_format
        )
        return params.with_defaults(defaults)

    async def _token_ids(self, added: Any) -> list[int]:
        if not isinstance(added, str):
            return list(added)
        params = TokenizeParams(
            max_total_tokens=self._online.model_config.max_model_len, add_special_tokens=False
        )
        prompt = await self._online.renderer.tokenize_prompt_async({"prompt": added}, params)
        ids: list[int] = prompt["prompt_token_ids"]
        return ids
