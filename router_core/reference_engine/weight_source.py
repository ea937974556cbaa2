"""Where a model comes from: a seed or a checkpoint's directory."""

from pathlib import Path

from router_core.reference_engine.model import Model
from router_core.reference_engine.options import EngineOptions, ModelConfig
from router_core.reference_engine.tokenizer import ASSETS, Tokenizer
from router_core.reference_engine.weights import load_weights, read_config, seeded_weights


def first_model(options: EngineOptions) -> tuple[Model, Tokenizer]:
    """Return the model and the tokenizer that an engine begins with."""
    if options.model is not None and not options.model.is_dir():
        raise ValueError(f"--model: there is no directory {str(options.model)!r}")
    tokenizer = Tokenizer(options.model or ASSETS)
    if options.model is not None:
        config = read_config(options.model)
        return Model(config, load_weights(options.model, config)), tokenizer
    config = ModelConfig(vocab_size=tokenizer.vocabulary_size, max_position_embeddings=options.context_length)
    return Model(config, seeded_weights(config, options.model_seed, tokenizer.eos_id)), tokenizer


def model_from(path: str, config: ModelConfig, tokenizer: Tokenizer) -> Model:
    """Return a model of the same shape with other weights: of ``seed:N`` or of a checkpoint's directory.

    A shape that differs, or a path that holds no model, is a ValueError or an OSError.
    """
    if path.startswith("seed:"):
        return Model(config, seeded_weights(config, int(path.removeprefix("seed:")), tokenizer.eos_id))
    found = read_config(Path(path))
    if found != config:
        raise ValueError(f"{path}: its shape differs from that of the running model")
    return Model(config, load_weights(Path(path), config))
