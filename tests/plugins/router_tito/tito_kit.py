"""Tokenizers, chat templates and an agent's loop for the tests of router_tito."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
import jinja2.sandbox
from router_tito.matcher import Matcher
from router_tito.node import CommitResult, ModelTurnResult
from router_tito.render import RenderedPrompt, Renderer
from router_tito.trace import Trace
from router_tito.views import BranchView
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

# Qwen3's template with its whitespace, its stripping of thinking before the last question and its refusal of null.
QWEN3_LIKE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, question=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.searching and message.role == 'user' %}
        {%- set ns.searching = false %}
        {%- set ns.question = (messages|length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning = message.reasoning_content or '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.question and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# GLM: no close of a turn; the marker of the next role is what the model samples to stop. Arguments are an object.
GLM_LIKE = """
{{- '[gMASK]' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|' + message.role + '|>\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' + call.function.name }}
            {%- for key, value in call.function.arguments.items() %}{{- '\\n' + key + '=' + value|string }}{%- endfor %}
            {{- '</tool_call>' }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

# DeepSeek V3: system messages are gathered at the top, tool calls need a null content, state leaks between cycles.
DEEPSEEK_LIKE = """
{%- set ns = namespace(system='', first_output=true, is_tool=false) %}
{%- for message in messages if message.role == 'system' %}
    {%- set ns.system = ns.system + message.content %}
{%- endfor %}
{{- '<bos>' + ns.system }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.is_tool = false %}{{- '<|user|>' + message.content }}
    {%- elif message.role == 'assistant' and message.content is none %}
        {%- set ns.is_tool = false %}
        {{- '<|assistant|>' }}
        {%- for call in message.tool_calls %}
            {{- '<call>' + call.function.name + '\\n' + call.function.arguments + '</call>' }}
        {%- endfor %}
        {{- '<eos>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|assistant|>' + message.content + '<eos>' }}
    {%- elif message.role == 'tool' %}
        {%- set ns.is_tool = true %}
        {%- if ns.first_output %}{{- '<outputs>' + message.content }}{%- set ns.first_output = false %}
        {%- else %}{{- '\\n' + message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.is_tool %}{{- '</outputs>' }}{%- endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{- '<|assistant|>' }}{%- endif %}
"""

# Llama 3: trims, knows no tools, refuses nothing.
LLAMA_LIKE = """
{{- '<bos>' }}
{%- for message in messages %}
    {{- '<|start|>' + message.role + '<|end|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}
"""

SPECIALS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "[gMASK]",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|observation|>",
    "<bos>",
    "<eos>",
    "<outputs>",
    "</outputs>",
    "<call>",
    "</call>",
    "<|start|>",
    "<|end|>",
    "<|eot|>",
]
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# The tokens of Qwen3 that the exact cases are made of, under their true ids.
QWEN3_IDS = {
    ".": 13, "1": 16, "2": 17, "3": 18, "9": 24, ":": 25, "S": 50, "f": 69, "q": 80, "r": 81, "t": 83, "x": 87,
    "\n": 198, "\n\n": 271, ' "': 330, '",': 497, "ize": 551, "name": 606, '":': 788, "user": 872, "sum": 1242,
    '","': 2198, " sum": 2629, '":"': 3252, '{"': 4913, ' {"': 5212, "mar": 5612, "system": 8948, "Sum": 9190,
    "done": 10438, "}}\n": 11248, "arguments": 16370, "Summary": 19237, '":{"': 22317, "assistant": 77091,
    "<|im_start|>": 151644, "<|im_end|>": 151645, "<tool_call>": 151657, "</tool_call>": 151658,
    "<tool_response>": 151665, "</tool_response>": 151666, "<think>": 151667, "</think>": 151668,
}  # fmt: skip


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


@cache
def _compiled(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


class Templated:
    """The half of a tokenizer that renders."""

    def __init__(self, template: str) -> None:
        self._template = _compiled(template)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        arguments = dict(template_kwargs, messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return self._template.render(**arguments)


class Qwen3Cut(Templated):
    """Qwen3's own ids for the few texts of the exact cases: the longest known piece, other characters by code point."""

    def __init__(self, template: str = QWEN3_LIKE) -> None:
        super().__init__(template)
        self.special_ids = frozenset((151644, 151645))
        self._pieces = sorted(QWEN3_IDS, key=len, reverse=True)
        self._texts = {token_id: text for text, token_id in QWEN3_IDS.items()}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> list[int]:
        ids = []
        while text:
            piece = next((piece for piece in self._pieces if text.startswith(piece)), text[0])
            ids.append(QWEN3_IDS.get(piece, 200_000 + ord(piece[0])))
            text = text[len(piece) :]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self._texts.get(token_id) or chr(token_id - 200_000) for token_id in token_ids)


@cache
def _trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["the weather in the city is fine", '{"name": "get", "arguments": {"city": "x"}}', "system user assistant"]
    tokenizer.train_from_iterator(corpus * 20, trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return tokenizer


class Trained(Templated):
    """A byte-level BPE trained on a few lines: every text has ids, and what belongs together is merged."""

    def __init__(self, template: str = QWEN3_LIKE) -> None:
        super().__init__(template)
        self._tokenizer = _trained()
        self.special_ids = frozenset(self._tokenizer.token_to_id(text) for text in SPECIALS)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    """A tool call as agents send it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tool(content: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def assistant(content: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def answer(
    ids: Sequence[int],
    message: Mapping[str, Any],
    prompt: RenderedPrompt | Sequence[int],
    **fields: Any,
) -> ModelTurnResult:
    """What an engine that sampled ``ids`` on ``prompt`` brings back; logprobs tell the tokens apart."""
    fields.setdefault("finish_reason", "stop")
    fields.setdefault("logprobs", [-(1 + index) / 64 for index in range(len(ids))])
    if isinstance(prompt, RenderedPrompt):
        fields.setdefault("prompt_message_indices", prompt.message_indices)
        fields.setdefault("labelled_from", prompt.labelled_from)
        fields.setdefault("reused_prefix_length", prompt.reused_prefix_length)
        fields.setdefault("how", prompt.how)
        prompt = prompt.ids
    return ModelTurnResult(prompt_ids=prompt, completion_ids=ids, message=message, **fields)


class Agent:
    """An agent's side of a session: asks with its messages, gets scripted tokens, and all is rendered and committed."""

    def __init__(self, tokenizer: Any, *, matchers: Sequence[str] = ("loose_tool_call",), **settings: Any) -> None:
        self.tokenizer = tokenizer
        self.trace = Trace(matcher=Matcher(matchers))
        self.renderer = Renderer(tokenizer, **settings)
        self.prompts: list[RenderedPrompt] = []

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampled: str | Sequence[int],
        message: Mapping[str, Any],
        *,
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> CommitResult:
        turn = self.trace.prepare_turn(messages, tools, template_kwargs)
        prompt = self.renderer.render_turn(turn)
        self.prompts.append(prompt)
        ids = self.tokenizer.encode_batch([sampled])[0] if isinstance(sampled, str) else sampled
        result = self.trace.commit(turn, answer(ids, message, prompt, **fields))
        self.trace.mark_delivered(result.node_id)
        return result

    def rows(self, **options: Any) -> list[tuple[list[int], list[int]]]:
        """Token ids and loss mask of every branch."""
        return [row(branch) for branch in self.trace.branches(**options)]


def row(branch: BranchView) -> tuple[list[int], list[int]]:
    return list(branch.token_ids), list(branch.loss_mask)


def runs(mask: Sequence[int]) -> str:
    """A loss mask as the design writes it: ``c17 T22``."""
    parts: list[list[int]] = []
    for bit in mask:
        if parts and parts[-1][0] == bit:
            parts[-1][1] += 1
        else:
            parts.append([bit, 1])
    return " ".join(f"{'cT'[bit]}{count}" for bit, count in parts)


def without_content(message: dict[str, Any]) -> dict[str, Any]:
    """A matcher of a user's own: content does not count."""
    return {key: value for key, value in message.items() if key != "content"}
