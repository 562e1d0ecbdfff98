"""The one way from features and text to token ids: training, evaluation and serving all call it.

    <s> <feature 1=bucket> ... <feature n=bucket> text tokens <ans>

The next token is the label. Imports the tokenizer library only, so that a scoring service stays small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from components.core.errors import IntegrityError, UserError
from components.models.calibration import Calibration
from components.models.causal_lm.buckets import bucket_of
from components.models.causal_lm.tokenizer import TOKENIZER_FILE, Names, bucket_token
from components.models.files import SIGNATURE, read_signature
from components.models.text import cut, normalise

if TYPE_CHECKING:
    import pandas as pd
    from tokenizers import Tokenizer


def template(features: Sequence[str], text_tokens: int, names: Names | None = None) -> str:
    """The prompt in words, part of the signature: a renderer that renders another refuses the model."""
    frame = names or Names()
    buckets = (f"<{name}=BUCKET>" for name in features)
    return " ".join([frame.begin, *buckets, *["TEXT"] * bool(text_tokens), frame.answer])


class Renderer:
    """Turns inputs into token ids and the two label log probabilities into a decision.

    Attributes:
        signature: the model's `pilotline.json`; one that started from another model names that one's tokens.
        features: feature names in prompt order.
        labels: (negative, positive).
        label_token_ids: their token ids, in the same order.
        new_token_ids: tokens that the initial model did not have; none where there was no initial model.
        max_tokens: no prompt is longer than this.
    """

    def __init__(self, tokenizer: Tokenizer, signature: dict[str, Any]) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # a special token spelt out in text is ordinary text
        self._tokenizer = tokenizer
        self.signature = signature
        self.features: tuple[str, ...] = tuple(signature["features"])
        self.labels: tuple[str, ...] = tuple(signature["labels"])
        self._names = Names.of(signature)
        self.label_token_ids: list[int] = [self._id(token) for token in self._names.labels]
        self.new_token_ids: list[int] = [int(token) for token in signature.get("new_token_ids") or ()]
        self.text_tokens = int(signature["text_tokens"])
        self.max_tokens = len(self.features) + self.text_tokens + 2
        self.pad_id, self.unknown_id = self._id(self._names.pad), self._id(self._names.unknown)
        self._begin, self._answer = self._id(self._names.begin), self._id(self._names.answer)
        self._plain = signature.get("text_form") == "plain"
        self._edges: list[list[float]] = [list(signature["bucket_edges"][name]) for name in self.features]
        self.bucket_counts = np.array([len(edges) + 1 for edges in self._edges], dtype=np.int64)
        self.first_bucket_ids = np.array([self._id(bucket_token(name, 0)) for name in self.features], dtype=np.int64)
        self._specials = frozenset(tokenizer.get_added_tokens_decoder()) - {self.unknown_id}
        self._calibration = Calibration(**signature["calibration"]) if signature["calibration"] else None
        self._check()

    @classmethod
    def load(cls, model_dir: Path) -> Renderer:
        """The renderer of an exported model; IntegrityError where its files do not fit together."""
        from tokenizers import Tokenizer

        signature = read_signature(model_dir)
        asked = {"label_token_ids", "bucket_edges", "text_tokens", "prompt"}
        if missing := sorted(asked - set(signature)):
            raise IntegrityError(f"{model_dir / SIGNATURE}: {missing[0]!r} is missing; train the model again")
        try:
            return cls(Tokenizer.from_file(str(model_dir / TOKENIZER_FILE)), signature)
        except IntegrityError:
            raise
        except Exception as error:  # the tokenizer library raises bare Exception
            raise IntegrityError(f"{model_dir}: tokenizer and signature do not load ({error}); train again") from error

    def token_ids(self, features: Mapping[str, float | None], text: str) -> list[int]:
        """The prompt of one row.

        Args:
            features: a value for every feature of the signature, None or NaN = no history; others are ignored.
            text: free text; only its first `text_tokens` tokens are read.

        Raises:
            UserError: a feature is absent or not a number.
        """
        return self.assemble(self.feature_token_ids(self._buckets_of_row(features)), self.text_token_ids([text])[0])

    def frame_token_ids(self, frame: pd.DataFrame) -> list[list[int]]:
        """The prompts of rows with the training set's columns, in row order."""
        buckets, texts = self.frame_parts(frame)
        return [self.assemble(ids, text) for ids, text in zip(self.feature_token_ids(buckets), texts, strict=True)]

    def frame_parts(self, frame: pd.DataFrame) -> tuple[NDArray[np.int64], list[list[int]]]:
        """What a prompt is assembled from: bucket indices of shape (rows, features) and the text tokens of each row."""
        if missing := [name for name in self.features if name not in frame.columns]:
            raise UserError(f"rows have no column {missing[0]!r}, which the model reads; featurise them again")
        columns = [
            bucket_of(frame[name].to_numpy(dtype=np.float64, na_value=np.nan), edges)
            for name, edges in zip(self.features, self._edges, strict=True)
        ]
        buckets = np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0), dtype=np.int64)
        if not self.text_tokens:
            return buckets, [[] for _ in range(len(frame))]
        if "text" not in frame.columns:
            raise UserError("rows have no column 'text', which the model reads; featurise them again")
        return buckets, self.text_token_ids(["" if text is None else str(text) for text in frame["text"]])

    def feature_token_ids(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids of bucket indices, same shape (..., features)."""
        return self.first_bucket_ids + buckets

    def text_token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, at most `text_tokens` each, none of them a special token."""
        if not self.text_tokens:
            return [[] for _ in texts]
        read = cut if self._plain else normalise
        found = self._tokenizer.encode_batch_fast([read(t, self.text_tokens) for t in texts], add_special_tokens=False)
        encoded = [encoding.ids[: self.text_tokens] for encoding in found]
        return [[self.unknown_id if i in self._specials else i for i in ids] for ids in encoded]

    def assemble(self, feature_ids: Sequence[int] | NDArray[np.int64], text_ids: Sequence[int]) -> list[int]:
        """Begin, features, text, answer."""
        return [self._begin, *map(int, feature_ids), *map(int, text_ids), self._answer]

    def score(self, logprob_negative: float, logprob_positive: float) -> float:
        """The calibrated probability of the positive label, 0..1.

        Raises:
            IntegrityError: the log probabilities are not numbers, so there is nothing to decide on.
        """
        odds = logprob_positive - logprob_negative
        if math.isnan(odds) or self._calibration is None:
            raise IntegrityError("the model gave no usable label probabilities; check the replica and its model")
        return float(self._calibration.probability(np.array(odds)))

    def label(self, score: float, threshold: float) -> str:
        """The positive label where the score reaches the threshold, else the negative one."""
        return self.labels[1] if score >= threshold else self.labels[0]

    def _buckets_of_row(self, features: Mapping[str, float | None]) -> NDArray[np.int64]:
        found = []
        for name, edges in zip(self.features, self._edges, strict=True):
            if name not in features:
                raise UserError(f"feature {name!r} is missing; the model reads {', '.join(self.features)}")
            value = features[name]
            try:
                number = math.nan if value is None else float(value)
            except (TypeError, ValueError) as error:
                raise UserError(f"feature {name!r}: {value!r} is not a number") from error
            found.append(int(bucket_of(np.array(number), edges)))
        return np.array(found, dtype=np.int64)

    def _id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise IntegrityError(f"the tokenizer has no token {token}; train the model again")
        return int(found)

    def _check(self) -> None:
        ours = template(self.features, self.text_tokens, self._names)
        if self.signature["prompt"] != ours:
            raise IntegrityError(
                f"the model was trained on the prompt {str(self.signature['prompt'])[:200]!r}, and this code renders "
                f"{ours[:200]!r}; serve it with the code it was trained by, or train again"
            )
        given = self.signature.get("label_token_ids")
        if given is not None and list(given) != self.label_token_ids:
            raise IntegrityError(f"label token ids {given} are not the tokenizer's {self.label_token_ids}; train again")
        for name, edges in zip(self.features, self._edges, strict=True):
            if any(not math.isfinite(edge) for edge in edges) or sorted(set(edges)) != edges:
                raise IntegrityError(f"bucket edges of {name!r} do not increase; train the model again")
            if self._id(bucket_token(name, len(edges) + 1)) != self._id(bucket_token(name, 0)) + len(edges) + 1:
                raise IntegrityError(f"bucket tokens of {name!r} are not consecutive; train the model again")
