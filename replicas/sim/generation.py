"""One request inside the simulated engine: its sequences, and the answer that they write."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from replicas.engines.protocol import EngineReport, EngineRequest, Route
from replicas.sim.answers import Answer, Delta, Usage
from replicas.sim.chain import HashChain
from replicas.sim.chat import ChatAnswer
from replicas.sim.choice import Choice
from replicas.sim.completions import CompletionsAnswer
from replicas.sim.request import GenerationParams, check_length, parse_params
from replicas.sim.responses import ResponsesAnswer
from replicas.sim.sequence import Drawn, TextSequence
from replicas.sim.text import Sampler, text, variant


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """What the engine adds to a request: lengths in tokens, and the model's public name."""

    model: str
    block_size: int
    max_model_len: int
    default_max_tokens: int


class Generation:
    """Turns drawn tokens into the answer's bytes. Choice `i * n + j` is prompt i's j-th.

    Construction raises `RequestRejected` where the request is at fault. `created` is in whole
    seconds since the epoch.
    """

    def __init__(self, request: EngineRequest, limits: GenerationLimits, created: int) -> None:
        self._params = parse_params(request)
        self._is_stream = request.is_stream
        self._reports_tokens = request.reports_tokens
        self._prompts = len(request.prompts)
        self._choices = list(_choices(request, self._params, limits))
        self._index = {id(choice.sequence): i for i, choice in enumerate(self._choices)}
        self._said = [Delta() for _ in self._choices]
        self._answer = _answer(request, self._params, limits.model, created)
        self._is_open = False

    @property
    def sequences(self) -> list[TextSequence]:
        return [choice.sequence for choice in self._choices]

    @property
    def is_finished(self) -> bool:
        return all(choice.is_finished for choice in self._choices)

    def accept(self, drawn: Drawn) -> tuple[bytes, bool]:
        """Takes one token; returns what to send, and whether its choice ended with it."""
        index = self._index[id(drawn.sequence)]
        choice = self._choices[index]
        if choice.is_finished:
            return b"", True
        delta = choice.accept(drawn)
        if not self._is_stream:
            self._said[index].add(delta)
            return b"", choice.is_finished
        usage = self._usage_of(choice) if self._params.is_usage_continuous else None
        return self._opening() + self._answer.delta(index, delta, usage), choice.is_finished

    def closing(self) -> bytes:
        """The rest of the answer, once every choice is finished."""
        if self._is_stream:
            return self._answer.closing(self.usage())
        return self._answer.document(self._said, self.usage())

    @property
    def finish_reason(self) -> str:
        """The first choice's, once it is finished."""
        return self._choices[0].finish_reason or "length"

    def report(self) -> EngineReport:
        """What was found in the cache for each choice, in their order; and the first one's ids."""
        return EngineReport(
            tuple(choice.sequence.cached_tokens or 0 for choice in self._choices),
            self._choices[0].output() if self._reports_tokens else None,
        )

    def _opening(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        return self._answer.opening()

    def usage(self) -> Usage:
        """Prompts count once, however many choices share them."""
        firsts = self._choices[:: len(self._choices) // self._prompts]
        return Usage(
            prompt_tokens=sum(choice.sequence.prompt_tokens for choice in firsts),
            completion_tokens=sum(choice.completion_tokens for choice in self._choices),
            cached_tokens=sum(choice.sequence.cached_tokens or 0 for choice in firsts),
        )

    def _usage_of(self, choice: Choice) -> Usage:
        sequence = choice.sequence
        return Usage(sequence.prompt_tokens, choice.completion_tokens, sequence.cached_tokens or 0)


def _choices(
    request: EngineRequest, params: GenerationParams, limits: GenerationLimits
) -> Iterator[Choice]:
    for prompt_index, packed in enumerate(request.prompts):
        prompt = array("I")
        prompt.frombytes(packed)
        check_length(len(prompt), params, limits.max_model_len)
        echo = _echo(prompt_index, prompt, params)
        for choice_index in range(params.choices):
            sequence = _sequence(request, prompt, params, limits, choice_index)
            yield Choice(sequence, params, echo)


def _sequence(
    request: EngineRequest,
    prompt: "array[int]",
    params: GenerationParams,
    limits: GenerationLimits,
    choice_index: int,
) -> TextSequence:
    draw = variant(params.temperature, params.seed, choice_index)
    room_tokens = limits.max_model_len - len(prompt)
    return TextSequence(
        tokens=prompt[:],
        max_tokens=min(params.max_tokens or limits.default_max_tokens, room_tokens),
        sampler=Sampler(prompt.tobytes(), draw),
        chain=HashChain(limits.block_size, request.cache_salt),
        cache_salt=request.cache_salt,
    )


def _echo(prompt_index: int, prompt: "array[int]", params: GenerationParams) -> str:
    if not params.is_echo:
        return ""
    if prompt_index < len(params.echo_texts):
        return params.echo_texts[prompt_index]
    return text(prompt.tolist())


def _answer(request: EngineRequest, params: GenerationParams, model: str, created: int) -> Answer:
    top, is_usage_shown = params.top_logprobs, params.is_usage_shown
    if request.route is Route.CHAT:
        answer_id = f"chatcmpl-{request.request_id}"
        return ChatAnswer(answer_id, model, created, params.choices, top, is_usage_shown)
    if request.route is Route.COMPLETIONS:
        answer_id = f"cmpl-{request.request_id}"
        return CompletionsAnswer(answer_id, model, created, top, is_usage_shown)
    return ResponsesAnswer(f"resp_{request.request_id}", model, created, params.max_tokens)
