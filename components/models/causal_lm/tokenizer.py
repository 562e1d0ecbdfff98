"""A BPE vocabulary from the training text, with one token a label and one a feature bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from components.core.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, BEGIN, END, UNKNOWN, ANSWER = "<pad>", "<s>", "</s>", "<unk>", "<ans>"
RESERVED = (PAD, BEGIN, END, UNKNOWN, ANSWER)
TOKENIZER_FILE = "tokenizer.json"
_PLAIN = re.compile(r"[^<>=\s]{1,64}")


def label_token(label: str) -> str:
    """The token of a label."""
    return f"<{label}>"


def bucket_token(feature: str, bucket: int) -> str:
    """The token of a feature's bucket; bucket 0 is no history."""
    return f"<{feature}={bucket}>"


def special_tokens(labels: Sequence[str], features: Sequence[str], buckets: int) -> list[str]:
    """All special tokens in id order: reserved, labels, then buckets 0..`buckets` feature by feature.

    Raises:
        UserError: a label or feature name cannot be one token of its own, or two are alike.
    """
    for name in (*labels, *features):
        if not _PLAIN.fullmatch(name):
            raise UserError(
                f"recipe: {name!r} cannot name a token; use no space, '<', '>' or '=' in labels and features"
            )
    tokens = [*RESERVED, *map(label_token, labels)]
    tokens += [bucket_token(feature, bucket) for feature in features for bucket in range(buckets + 1)]
    if len(set(tokens)) != len(tokens):
        twice = next(token for token in tokens if tokens.count(token) > 1)
        raise UserError(f"recipe: token {twice} is needed twice; rename that label or feature")
    return tokens


def train_tokenizer(texts: Iterable[str], vocabulary: int, specials: Sequence[str]) -> Tokenizer:
    """Train a BPE tokenizer on normalised texts; `vocabulary` counts the tokens beyond the special ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary + len(specials),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in specials],
        min_frequency=3,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Write `tokenizer.json` and the two small files that transformers and vLLM read beside it."""
    tokenizer.save(str(folder / TOKENIZER_FILE))
    named = {"bos_token": BEGIN, "eos_token": END, "unk_token": UNKNOWN, "pad_token": PAD}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_positions, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1, sort_keys=True))
    (folder / "special_tokens_map.json").write_text(json.dumps(named, indent=1, sort_keys=True))
