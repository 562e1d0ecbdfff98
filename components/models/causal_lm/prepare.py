"""From a training set to vocabulary, bucket edges, signature and encoded rows: a pure function of its inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from components.core.errors import UserError
from components.models.causal_lm.buckets import quantile_edges
from components.models.causal_lm.prompt import Renderer, template
from components.models.causal_lm.text import normalise
from components.models.causal_lm.tokenizer import label_token, save_tokenizer, special_tokens, train_tokenizer
from components.models.feature_source import FeatureSource
from components.models.files import SIGNATURE

if TYPE_CHECKING:
    import pandas as pd

    from components.core.recipe import Recipe
    from components.core.records import TrainingSetRef


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

    Vocabulary and bucket edges come from the training rows alone.

    Raises:
        UserError: the prompt does not fit the model, or a label or feature cannot be a token of its own.
    """
    model, features = recipe.model, recipe.features.model_inputs
    longest = len(features) + model.text_tokens + 2
    if longest >= model.max_positions:
        raise UserError(
            f"recipe: a prompt of {longest} tokens does not fit model.max_positions {model.max_positions};"
            " lower model.text_tokens"
        )
    specials = special_tokens(model.labels, features, model.feature_buckets)
    texts = (normalise(text, model.text_tokens) for text in train["text"]) if model.text_tokens else iter(())
    tokenizer = train_tokenizer(texts, model.vocabulary if model.text_tokens else 0, specials)
    edges = {name: quantile_edges(train[name].to_numpy(dtype=np.float64), model.feature_buckets) for name in features}
    signature = _signature(recipe, ref, edges) | {
        "label_token_ids": [tokenizer.token_to_id(label_token(label)) for label in model.labels]
    }
    save_tokenizer(tokenizer, folder, model.max_positions)
    (folder / SIGNATURE).write_text(json.dumps(signature, indent=1, sort_keys=True))
    renderer = Renderer(tokenizer, signature)
    encode(renderer, train).save(folder / "train.npz")
    encode(renderer, validation).save(folder / "validation.npz")


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
        "training_set_digest": ref.digest,
        "recipe_digest": recipe.digest,
    }
