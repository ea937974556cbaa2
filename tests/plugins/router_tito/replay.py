"""Replays a conversation against a template: whatever its assistant says is sampled, and sent back as it stands.

By hand, over JSON files with ``messages`` and ``tools``:
python tests/plugins/router_tito/replay.py TOKENIZER_DIR FILE...
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3] / "plugins"))

from router_tito.errors import RenderError
from router_tito.node import RenderContext
from router_tito.render import Renderer
from tito_kit import Agent, assistant, user


def said_ids(
    renderer: Renderer, tokenizer: Any, messages: Sequence[Any], said: Any, context: RenderContext
) -> list[int]:
    """What a model samples for a message: what its template writes for it, up to the token that closes a turn.

    Where the template writes it otherwise behind this history, or not at all, its text and its calls as they stand.
    """
    close = _close(renderer, tokenizer)
    text = None
    try:
        prompt = renderer.template.render(messages, context, generation_prompt=True)
        whole = renderer.template.render([*messages, said], context, generation_prompt=False)
        text = whole[len(prompt) :] if whole.startswith(prompt) else None
    except RenderError:
        pass
    if text is None:
        calls = "".join(f'{{"name": "{c["function"]["name"]}", "parameters": 0}}' for c in said.get("tool_calls") or [])
        text = (said.get("content") or "") + calls
    ids = tokenizer.encode_batch([text])[0]
    return [*(ids[: ids.index(close)] if close in ids else ids), close]


def _close(renderer: Renderer, tokenizer: Any) -> int:
    turn = [user("q"), assistant("spoken")]
    text = renderer.template.render(turn, RenderContext((), {}), generation_prompt=False).partition("spoken")[2]
    return tokenizer.encode_batch([text])[0][0]


def replay(tokenizer: Any, conversations: Sequence[Sequence[Mapping[str, Any]]], tools: Sequence[Any] | None) -> Agent:
    """One session in which the conversations follow each other."""
    agent = Agent(tokenizer)
    context = RenderContext(tuple(tools or ()), {})
    for messages in conversations:
        for at, said in enumerate(messages):
            if said["role"] == "assistant":
                ids = said_ids(agent.renderer, tokenizer, messages[:at], said, context)
                agent.ask(messages[:at], ids, said, tools=tools)
    return agent


def reasons(agent: Agent) -> dict[str, int]:
    """Why prompts were not bridged, beside the first one of all."""
    return dict(Counter(prompt.no_bridge for prompt in agent.prompts[1:] if prompt.no_bridge))


def summary(agent: Agent) -> tuple[int, dict[str, int]]:
    """Sequences, and why prompts were not bridged."""
    return len(agent.trace.branches()), reasons(agent)


def main() -> None:
    from real_tokenizers import HuggingFace

    tokenizer = HuggingFace(sys.argv[1])
    for file in sys.argv[2:]:
        session = json.loads(Path(file).read_text())
        agent = replay(tokenizer, [session["messages"]], session.get("tools"))
        branches = agent.trace.branches()
        lengths = [len(branch.token_ids) for branch in branches]
        trained = sum(sum(branch.loss_mask) for branch in branches)
        print(
            f"{Path(file).stem}: {len(agent.prompts)} turns, {len(branches)} sequence(s) of {lengths} tokens,"
            f" {trained} trained; not bridged: {reasons(agent)}"
        )


if __name__ == "__main__":
    main()
