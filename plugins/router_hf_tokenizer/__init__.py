"""Real tokenizers behind the `tokenizer` hook: the only part of the router that imports transformers."""
