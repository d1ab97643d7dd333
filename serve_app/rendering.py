"""Prompts to token ids, once, at the ingress: vLLM's own renderer, without an engine.

Importing this module imports vLLM, which takes seconds. Long bodies belong on a `RenderLoop`, not
on the loop that serves requests.
"""

from collections.abc import Awaitable
from typing import TypeAlias, TypeVar

import numpy as np
from starlette.datastructures import State
from vllm import envs
from vllm.config import DeviceConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.render.app_state import init_render_app_state
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMClientError
from vllm.utils.gc_utils import freeze_gc_heap

from replicas.engines.vllm.arguments import vllm_arguments
from router.configuration import ModelConfig, SimConfig
from router.core.errors import InvalidRequest
from serve_app.allow_list import ApiRoute, Json
from serve_app.contexts.chat_template import ChatTemplate
from serve_app.request_models import budget, invalid, validated

T = TypeVar("T")
GenerateRequest: TypeAlias = ChatCompletionRequest | CompletionRequest | ResponsesRequest

_CLIENT_FAULTS = (VLLMClientError, ValueError, TypeError, OverflowError, NotImplementedError)


class Renderer:
    """One model's tokenizer and chat template."""

    def __init__(self, state: State) -> None:
        self._online = state.online_renderer
        self._template = ChatTemplate(state.online_renderer)
        self._tokenization = state.serving_tokenization
        self._config = state.vllm_config.model_config

    @classmethod
    async def load(cls, model: ModelConfig, workers: int) -> "Renderer":
        """Blocks for seconds. `workers` threads template and tokenize."""
        args = vllm_arguments(model, renderer_num_workers=workers, **_sim_arguments(model))
        engine_args = AsyncEngineArgs.from_cli_args(args)
        model_config = engine_args.create_model_config()
        # Rendering touches no weights: neither their quantisation nor a KV cache is to be checked.
        model_config.quantization = None
        envs.VLLM_CPU_KVCACHE_SPACE = 0
        vllm_config = VllmConfig(
            model_config=model_config,
            device_config=DeviceConfig(device="cpu"),
            structured_outputs_config=engine_args.create_structured_outputs_config(),
        )
        state = State()
        await init_render_app_state(vllm_config, state, args)
        freeze_gc_heap()  # a look at all of vLLM's modules would hold up every stream
        return cls(state)

    @property
    def max_model_len(self) -> int:
        return int(self._config.max_model_len)

    @property
    def accepts_media(self) -> bool:
        return bool(self._config.is_multimodal_model)

    def validated(self, route: ApiRoute, body: Json) -> GenerateRequest:
        """vLLM's request object; see `request_models.validated`."""
        request: GenerateRequest = validated(route, body, self.max_model_len)
        return request

    async def render(
        self, route: ApiRoute, body: Json, request: GenerateRequest
    ) -> tuple[bytes, ...]:
        """The token ids of each prompt, packed as little-endian u32.

        Raises `InvalidRequest` for whatever is wrong with `body` and can be known without the
        engine; any other exception is a fault of the renderer.
        """
        prompts = await _checked(route, self._render(request))
        for prompt in prompts:
            self._check_prompt(route, prompt)
        self.check_budget(route, body, max(map(len, prompts)))
        return tuple(np.asarray(prompt, dtype="<u4").tobytes() for prompt in prompts)

    async def delta_ids(
        self,
        request: ChatCompletionRequest,
        before: list[Json],
        new: list[Json],
        *,
        is_answered: bool,
    ) -> list[int] | None:
        """See `ChatTemplate.delta_ids`. Raises `InvalidRequest`."""
        template = self._template
        found = template.delta_ids(request, before, new, is_answered=is_answered)
        return await _checked(ApiRoute.CHAT, found)

    async def tokenize(self, body: Json) -> Json:
        """What `/tokenize` answers. Raises `InvalidRequest`."""
        request = validated(ApiRoute.TOKENIZE, body, self.max_model_len)
        answer = await _checked(
            ApiRoute.TOKENIZE, self._tokenization.create_tokenize(request, None)
        )
        dumped: Json = answer.model_dump(mode="json")
        return dumped

    async def _render(self, request: GenerateRequest) -> list[list[int]] | ErrorResponse:
        if isinstance(request, CompletionRequest):
            inputs = await self._online.render_completion(request)
        elif isinstance(request, ResponsesRequest):
            result = await self._online.render_responses(request)
            inputs = result if isinstance(result, ErrorResponse) else [result.engine_input]
        else:
            result = await self._online.render_chat(request)
            inputs = result if isinstance(result, ErrorResponse) else result[1]
        if isinstance(inputs, ErrorResponse):
            return inputs
        return [item["prompt_token_ids"] for item in inputs]

    def _check_prompt(self, route: ApiRoute, prompt: list[int]) -> None:
        if not prompt:
            raise InvalidRequest("The prompt is empty.", param="prompt")
        try:
            self._online.renderer.validate_token_ids(prompt, parameter="prompt")
        except VLLMClientError as error:
            raise invalid(route, error) from error

    def check_budget(self, route: ApiRoute, body: Json, prompt_tokens: int) -> None:
        """Raises `InvalidRequest` where prompt and answer are too long together.

        vLLM would shorten the answer instead; OpenAI refuses, and so do we."""
        name, answer_tokens = budget(route, body)
        if prompt_tokens + (answer_tokens or 0) > self.max_model_len:
            raise InvalidRequest(
                f"This model's maximum context length is {self.max_model_len} tokens, but"
                f" {prompt_tokens} of prompt and {answer_tokens} of answer were asked for.",
                param=name,
                code="context_length_exceeded",
            )


def _sim_arguments(model: ModelConfig) -> dict[str, object]:
    """A simulated engine lends a tokenizer; its context is its own, and it takes any tools."""
    if model.engine != "sim":
        return {}
    limit = (model.sim or SimConfig()).max_model_len
    return {
        "max_model_len": limit,
        "hf_overrides": {"max_position_embeddings": limit},
        "tool_call_parser": model.tool_call_parser or "hermes",
        "enable_auto_tool_choice": True,
    }


async def _checked(route: ApiRoute, rendering: Awaitable[T | ErrorResponse]) -> T:
    """The result, where vLLM neither raised nor returned a complaint about the request."""
    try:
        result = await rendering
    except _CLIENT_FAULTS as error:
        raise invalid(route, error) from error
    if isinstance(result, ErrorResponse):
        raise InvalidRequest(result.error.message, param=result.error.param)
    return result
