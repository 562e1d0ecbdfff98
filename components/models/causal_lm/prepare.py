"""From a training set to vocabulary, bucket edges, signature and encoded rows: a pure function of its inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from components.core.errors import UserError
from components.models.causal_lm.buckets import quantile_edges
from components.models.causal_lm.initial import Initial, load_tokenizer, locate, read_config, write_pointer
from components.models.causal_lm.prompt import Renderer, template
from components.models.causal_lm.tokenizer import (
    Names,
    extend_tokenizer,
    label_token,
    own_label_tokens,
    save_tokenizer,
    special_tokens,
    train_tokenizer,
)
from components.models.feature_source import FeatureSource
from components.models.files import SIGNATURE
from components.models.text import cut, normalise

if TYPE_CHECKING:
    import pandas as pd

    from components.core.recipe import Recipe
    from components.core.records import TrainingSetRef

MOST_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class EncodedRows:
    """Rows ready to be assembled into prompts.

    Attributes:
        labels: 0 or 1, shape (rows,).
        buckets: bucket index of each feature, shape (rows, features).
        text_ids: all text tokens one after another, int32.
        offsets: row r owns text_ids[offsets[r] : offsets[r + 1]], shape (rows + 1,).
    """

    labels: NDArray[np.int64]
    buckets: NDArray[np.int64]
    text_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def text(self, row: int) -> NDArray[np.int32]:
        """Text tokens of one row."""
        return self.text_ids[self.offsets[row] : self.offsets[row + 1]]

    def save(self, path: Path) -> None:
        """Write as .npz (plain arrays, nothing pickled)."""
        np.savez(path, labels=self.labels, buckets=self.buckets, text_ids=self.text_ids, offsets=self.offsets)

    @classmethod
    def load(cls, path: Path) -> EncodedRows:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as found:
            return cls(**{name: found[name] for name in ("labels", "buckets", "text_ids", "offsets")})


def prepare(recipe: Recipe, ref: TrainingSetRef, train: pd.DataFrame, validation: pd.DataFrame, folder: Path) -> None:
    """Write tokenizer files, the uncalibrated signature, `train.npz` and `validation.npz` into a staging folder.

    Vocabulary and bucket edges come from the training rows alone; with an initial model the vocabulary is its own and
    the tokens that it lacks, and where it lies is left for the ranks.

    Raises:
        UserError: the prompt does not fit the model, a label or feature cannot be a token of its own, a text is longer
            than any that is read, or the initial model cannot be read.
    """
    _refuse_endless_text(train, validation)
    initial = locate(recipe.model) if recipe.model.initial else None
    positions = _positions(recipe, initial)
    model, features = recipe.model, recipe.features.model_inputs
    edges = {name: quantile_edges(train[name].to_numpy(dtype=np.float64), model.feature_buckets) for name in features}
    signature = _signature(recipe, ref, edges)
    if initial is None:
        tokenizer, names = _own_vocabulary(recipe, train), Names()
    else:
        tokenizer, names, new = _initial_vocabulary(recipe, initial)
        own = {name: getattr(names, name) for name in ("begin", "pad", "unknown", "end", "answer")}
        signature |= {"tokens": own | {"labels": list(names.labels)}, "new_token_ids": new}
        signature |= {"prompt": template(features, model.text_tokens, names)}
        write_pointer(initial, folder)
    if model.text_form != "normalised":
        signature["text_form"] = model.text_form
    labels = Names.of(signature).labels
    signature["label_token_ids"] = [tokenizer.token_to_id(token) for token in labels]
    save_tokenizer(tokenizer, folder, positions, names)
    (folder / SIGNATURE).write_text(json.dumps(signature, indent=1, sort_keys=True))
    renderer = Renderer(tokenizer, signature)
    encode(renderer, train).save(folder / "train.npz")
    encode(renderer, validation).save(folder / "validation.npz")


def initial_digest(recipe: Recipe) -> str:
    """What names the initial model's content, "" where training starts from random weights."""
    return locate(recipe.model).digest() if recipe.model.initial else ""


def sized(recipe: Recipe) -> Recipe:
    """The recipe with the initial model's sizes in place of those that it does not read."""
    if not recipe.model.initial:
        return recipe
    config = read_config(locate(recipe.model))
    found = {
        "vocabulary": config.vocab_size,
        "hidden_size": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "max_positions": config.max_position_embeddings,
    }
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=found)})


def encode(renderer: Renderer, frame: pd.DataFrame) -> EncodedRows:
    """Encode rows with the same renderer that evaluation and serving use."""
    buckets, texts = renderer.frame_parts(frame)
    return EncodedRows(
        labels=frame["label"].to_numpy(dtype=np.int64),
        buckets=buckets,
        text_ids=np.array([token for ids in texts for token in ids], dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum([len(ids) for ids in texts], dtype=np.int64)]).astype(np.int64),
    )


def _signature(recipe: Recipe, ref: TrainingSetRef, edges: dict[str, list[float]]) -> dict[str, Any]:
    source = FeatureSource.of(ref, recipe.features.model_inputs)
    return {
        "family": recipe.model.family,
        "labels": list(recipe.model.labels),
        **source.signed(),
        "bucket_edges": edges,
        "text_tokens": recipe.model.text_tokens,
        "prompt": template(source.features, recipe.model.text_tokens),
        "calibration": None,
        "training_set_digest": ref.digest,  # not the recipe's: not all of it changes weights
    }


def _positions(recipe: Recipe, initial: Initial | None) -> int:
    """The longest prompt that the model takes; UserError where ours can be longer."""
    model = recipe.model
    longest = len(recipe.features.model_inputs) + model.text_tokens + 2
    positions, what = model.max_positions, "model.max_positions"
    if initial is not None:
        positions, what = int(read_config(initial).max_position_embeddings), "the initial model's positions"
    if longest >= positions:
        raise UserError(
            f"recipe: a prompt of {longest} tokens does not fit {what} {positions}; lower model.text_tokens"
        )
    return positions


def _refuse_endless_text(*frames: pd.DataFrame) -> None:
    """A text beyond what a person writes is a broken row, not something to cut in silence."""
    for frame in frames:
        lengths = frame["text"].str.len().fillna(0)
        if len(lengths) and (longest := int(lengths.max())) > MOST_CHARACTERS:
            raise UserError(
                f"training set: row {int(lengths.to_numpy().argmax())} has a text of {longest:,} characters, at most "
                f"{MOST_CHARACTERS:,} are taken; bound the text's length in the contract"
            )


def _own_vocabulary(recipe: Recipe, train: pd.DataFrame) -> Any:
    model = recipe.model
    if model.label_tokens == "own":
        raise UserError('recipe: model.label_tokens "own" are those of an initial model; name one in model.initial')
    specials = special_tokens(model.labels, recipe.features.model_inputs, model.feature_buckets)
    read = normalise if model.text_form == "normalised" else cut
    texts = (read(text, model.text_tokens) for text in train["text"]) if model.text_tokens else iter(())
    return train_tokenizer(texts, model.vocabulary if model.text_tokens else 0, specials)


def _initial_vocabulary(recipe: Recipe, initial: Initial) -> tuple[Any, Names, list[int]]:
    model, features = recipe.model, recipe.features.model_inputs
    tokenizer, given = load_tokenizer(initial)
    own = model.label_tokens == "own"
    labels = own_label_tokens(tokenizer, model.labels) if own else [label_token(label) for label in model.labels]
    tokens = special_tokens(() if own else model.labels, features, model.feature_buckets, ())
    names, new = extend_tokenizer(tokenizer, given, tokens)
    return tokenizer, replace(names, labels=tuple(labels)), new
