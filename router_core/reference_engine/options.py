"""What an engine can be told; light to import."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Script = Callable[[Sequence[int]], Sequence[int] | None]
"""Says which ids answer a prompt: prompt ids in, output ids out, None to let the model choose."""

Dialect = Literal["sglang", "vllm"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Qwen3-MoE-like decoder, under the names of Hugging Face's ``config.json``."""

    vocab_size: int = 1024
    hidden_size: int = 64
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    """No less: vLLM on a CPU could not compute the same checkpoint."""
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    norm_topk_prob: bool = True
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 32768


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """All settings of one engine; each is also a flag of ``router-core engine`` (``script`` is not)."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port."""
    dialect: Dialect = "sglang"
    """Whose wire is spoken."""
    model: Path | None = None
    """A Hugging Face checkpoint of a Qwen3MoE model with its tokenizer; None: seeded weights, the shipped tokenizer."""
    model_seed: int = 0
    """Seed of the weights when there is no checkpoint."""
    seed: int | None = None
    """Seed of requests that bring none, mixed with their number; None: never the same twice."""
    served_model_name: str = "reference"
    weight_version: str = "default"
    context_length: int = 32768
    """The most tokens of prompt and answer together."""
    step_delay_s: float = 0.0
    """Seconds that each sampled token takes at least."""
    max_running_requests: int = 256
    """More wait in a queue."""
    max_cached_tokens: int = 65536
    """The most tokens whose keys and values (2 KiB each) are kept for later prompts; 0 caches nothing."""
    routed_experts: bool = True
    """Expert choices can be asked for; False: they are silently absent, as on a server without the flag."""
    reasoning_parser: bool = True
    """Chat answers are split into thinking and content."""
    tool_call_parser: bool = True
    """Chat answers are searched for tool calls, if the request has tools."""
    script: Script | None = field(default=None, repr=False)
    """Scripts the model's words; their logprobs and experts stay true."""
