"""What the tiny model reads: its chat template, and the text its tokenizer is trained on."""

import random
from collections.abc import Iterator

CHAT_TEMPLATE = r"""
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- elif content is not none and content is defined -%}
    {%- for part in content -%}
      {%- if part is string -%}{{- part -}}{%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- set first_is_system = messages and messages[0].role in ('system', 'developer') -%}
{%- if tools -%}
  {{- '<|im_start|>system\n' -}}
  {%- if first_is_system -%}{{- text_of(messages[0].content) + '\n\n' -}}{%- endif -%}
  {{- '# Tools\n\nYou may call one or more of these functions:\n<tools>' -}}
  {%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
  {{- '\n</tools>\n\nFor each call, return a JSON object with the name and the arguments' -}}
  {{- ' inside <tool_call></tool_call> tags.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role in ('system', 'developer') -%}
    {%- if not (tools and loop.first) -%}
      {{- '<|im_start|>system\n' + text_of(message.content) + '<|im_end|>\n' -}}
    {%- endif -%}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\n' + text_of(message.content) -}}
    {%- for call in message.tool_calls or [] -%}
      {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
      {%- if call.function.arguments is string -%}
        {{- call.function.arguments -}}
      {%- else -%}
        {{- call.function.arguments | tojson -}}
      {%- endif -%}
      {{- '}\n</tool_call>' -}}
    {%- endfor -%}
    {%- if not (continue_final_message and loop.last) -%}{{- '<|im_end|>\n' -}}{%- endif -%}
  {%- elif message.role == 'tool' -%}
    {{- '<|im_start|>tool\n<tool_response>\n' + text_of(message.content) -}}
    {{- '\n</tool_response><|im_end|>\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\n' + text_of(message.content) + '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""".strip()

_SUBJECTS = "the operator,a user,the engine,our team,the index,every replica,a reader,the model"
_VERBS = "asks for,reads,keeps,sends,writes,compares,explains,counts,stores,answers,moves,finds"
_OBJECTS = (
    "a long document,the first answer,its own notes,three short words,the weather in Paris,"
    "a list of numbers,the same question,an older message,a table of results,the next step"
)
_TAILS = (
    "before noon,with great care,in plain words,and then waits,without delay,for the second time,"
    "as a JSON object,because it was asked to,on another machine,until nothing is left"
)
_PHRASES = (
    "You are a helpful assistant. Answer in one sentence.",
    "What is the capital of France? Please think step by step.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    '{"type": "function", "function": {"name": "", "description": "", "parameters": '
    '{"type": "object", "properties": {}, "required": []}}}',
    "def main(items: list[int]) -> int:\n    return sum(item * 2 for item in items)\n",
    "0 1 2 3 4 5 6 7 8 9 10 100 1000 2024 3.14 -1 50% (a) [b] {c} <d>",
)


def training_lines(rng: random.Random) -> Iterator[str]:
    """Some 600 lines of plain sentences, JSON and code; the same for the same generator."""
    yield from _PHRASES
    columns = [words.split(",") for words in (_SUBJECTS, _VERBS, _OBJECTS, _TAILS)]
    for _ in range(400):
        yield " ".join(rng.choice(column) for column in columns).capitalize() + "."
    for _ in range(200):
        yield " ".join(_invented_word(rng) for _ in range(12))


def _invented_word(rng: random.Random) -> str:
    """Syllables enough to fill the vocabulary: real sentences alone have too few distinct words."""
    syllables = rng.randint(1, 3)
    return "".join(
        rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") + rng.choice(["", "n", "r", "s", "t"])
        for _ in range(syllables)
    )
