"""The vocabulary: a BPE of the training text or the initial model's, with a token a label and one a feature bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class Names:
    """The tokens that frame a prompt and answer it; an initial model has some of its own."""

    begin: str = BEGIN
    pad: str = PAD
    unknown: str = UNKNOWN
    end: str = END
    answer: str = ANSWER
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, signature: Mapping[str, Any]) -> Names:
        """The names that a signature gives, else our own."""
        given = dict(signature.get("tokens") or {})
        labels = given.pop("labels", None) or [label_token(label) for label in signature["labels"]]
        return cls(**given, labels=tuple(labels))


def special_tokens(
    labels: Sequence[str], features: Sequence[str], buckets: int, reserved: Sequence[str] = RESERVED
) -> list[str]:
    """All special tokens in id order: reserved, labels, then buckets 0..`buckets` feature by feature.

    Raises:
        UserError: a label or feature name cannot be one token of its own, or two are alike.
    """
    for name in (*labels, *features):
        if not _PLAIN.fullmatch(name):
            raise UserError(
                f"recipe: {name!r} cannot name a token; use no space, '<', '>' or '=' in labels and features"
            )
    tokens = [*reserved, *map(label_token, labels)]
    tokens += [bucket_token(feature, bucket) for feature in features for bucket in range(buckets + 1)]
    if len(set(tokens)) != len(tokens):
        twice = next(token for token in tokens if tokens.count(token) > 1)
        raise UserError(f"recipe: token {twice} is needed twice; rename that label or feature")
    return tokens


def own_label_tokens(tokenizer: Tokenizer, labels: Sequence[str]) -> list[str]:
    """The tokens that a tokenizer has for the labels' words.

    Raises:
        UserError: a label is not one token, or two labels are the same one.
    """
    found = []
    for label in labels:
        ids = tokenizer.encode(label, add_special_tokens=False).ids
        if len(ids) != 1:
            raise UserError(
                f"model.labels: {label!r} is {len(ids)} tokens of the initial model's tokenizer; each label has to be "
                'one: choose another word, or model.label_tokens "new"'
            )
        found.append(str(tokenizer.id_to_token(ids[0])))
    if len(set(found)) != len(found):
        raise UserError(f"model.labels: {' and '.join(labels)} are the same token; choose other words")
    return found


def extend_tokenizer(tokenizer: Tokenizer, names: Mapping[str, str], tokens: Sequence[str]) -> tuple[Names, list[int]]:
    """Add the special tokens that an initial model's tokenizer lacks, each a token of its own.

    Args:
        tokenizer: is changed.
        names: its own begin, end, unknown and pad tokens.
        tokens: labels and buckets, in id order.

    Returns:
        The frame's names, and the ids of all tokens that are new.
    """
    from tokenizers import AddedToken

    begin, end, unknown = names.get("begin", BEGIN), names.get("end", END), names.get("unknown", UNKNOWN)
    framed = Names(
        begin=begin,
        end=end,
        pad=names.get("pad", end),
        unknown=UNKNOWN if unknown in (begin, end) else unknown,  # stands for a word left out: no other meaning
    )
    wanted = [framed.begin, framed.end, framed.pad, framed.unknown, framed.answer, *tokens]
    new = [token for token in dict.fromkeys(wanted) if tokenizer.token_to_id(token) is None]
    if clash := [token for token in tokens if token not in new]:
        raise UserError(f"recipe: token {clash[0]} is one of the initial model's already; rename that label or feature")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in new])
    return framed, [int(tokenizer.token_to_id(token) or 0) for token in new]


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


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int, names: Names | None = None) -> None:
    """Write `tokenizer.json` and the two small files that transformers and vLLM read beside it."""
    tokenizer.save(str(folder / TOKENIZER_FILE))
    found = names or Names()
    named = {"bos_token": found.begin, "eos_token": found.end, "unk_token": found.unknown, "pad_token": found.pad}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_positions, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1, sort_keys=True))
    (folder / "special_tokens_map.json").write_text(json.dumps(named, indent=1, sort_keys=True))
