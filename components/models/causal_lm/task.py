"""What is learned: the label after the prompt, and with a weight the text itself.

Everything random is a function of (seed, step) for the whole batch, and each micro-batch of a rank is a slice of it.
So neither the number of ranks nor the accumulation changes the data or the noise, and a resumed job repeats exactly.
Shapes are suffixes of names: b rows of a batch, l tokens, h hidden size, v vocabulary, n text targets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from components.core.recipe import Recipe, Training
from components.models.calibration import Calibration
from components.models.causal_lm.adapter import adapted, is_adapted, save_adapter
from components.models.causal_lm.flops import Cost, cost_of, step_flops
from components.models.causal_lm.network import build_network, trunk
from components.models.causal_lm.prepare import EncodedRows
from components.models.causal_lm.prompt import Renderer
from components.models.causal_lm.score import score_prompts
from components.models.causal_lm.tokenizer import TOKENIZER_FILE
from components.models.files import SIGNATURE

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """One rank's slice of a step's batch.

    Attributes:
        ids_bl: token ids, padded on the right.
        last_b: position of the answer token.
        labels_b: 0 or 1.
        targets_bl: the next token at each text position, IGNORED elsewhere.
        keep_blh: embedding dropout factors (0 or 1 / keep), or None.
        keep_bh: dropout factors of the answer's hidden state, or None.
        target_share: text targets of the whole batch a micro-batch, by which the language-model loss is divided.
        step_tokens: tokens of the whole step's batch without padding.
        step_flops: floating point operations that the whole step's batch needs, see `flops.step_flops`.
    """

    ids_bl: Tensor
    last_b: Tensor
    labels_b: Tensor
    targets_bl: Tensor
    keep_blh: Tensor | None
    keep_bh: Tensor | None
    target_share: float
    step_tokens: int
    step_flops: float

    def to(self, device: torch.device) -> Batch:
        """The same batch in a device's memory."""
        if device.type == "cpu":
            return self
        moved = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


class Objective(nn.Module):
    """The network with its training loss; the mean over all micro-batches equals the loss of the whole batch."""

    def __init__(self, network: Any, training: Training, label_token_ids: list[int]) -> None:
        super().__init__()
        self.network = network
        self._labels = list(label_token_ids)
        self._smoothing = training.label_smoothing
        self._text_weight = training.language_model_weight

    def forward(self, batch: Batch) -> Tensor:
        """Cross entropy over the two labels, plus the weighted loss of the text tokens."""
        embedded_blh = self.network.get_input_embeddings()(batch.ids_bl)
        if batch.keep_blh is not None:
            embedded_blh = embedded_blh * batch.keep_blh.to(embedded_blh.dtype)
        hidden_blh = trunk(self.network)(inputs_embeds=embedded_blh, use_cache=False).last_hidden_state
        answer_bh = hidden_blh[torch.arange(len(batch.last_b), device=hidden_blh.device), batch.last_b]
        if batch.keep_bh is not None:
            answer_bh = answer_bh * batch.keep_bh.to(answer_bh.dtype)
        head = self.network.get_output_embeddings()
        logits_bv = head(answer_bh).float()
        loss = functional.cross_entropy(logits_bv[:, self._labels], batch.labels_b, label_smoothing=self._smoothing)
        if self._text_weight and batch.target_share:
            wanted = batch.targets_bl != IGNORED
            logits_nv = head(hidden_blh[wanted]).float()
            text = functional.cross_entropy(logits_nv, batch.targets_bl[wanted], reduction="sum") / batch.target_share
            loss = loss + self._text_weight * text
        return loss


class Task:
    """The training task of one prepared folder."""

    def __init__(self, recipe: Recipe, prepared: Path) -> None:
        self._recipe, self._prepared = recipe, prepared
        self.renderer = Renderer.load(prepared)
        self.train = EncodedRows.load(prepared / "train.npz")
        self.validation = EncodedRows.load(prepared / "validation.npz")
        self._hidden, self._cost = recipe.model.hidden_size, Cost()

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """Labels of the training rows, 0 or 1."""
        return self.train.labels

    @property
    def validation_labels(self) -> NDArray[np.int64]:
        """Labels of the validation rows, 0 or 1."""
        return self.validation.labels

    def network(self) -> Any:
        """The network to train: new from the recipe's seed, or the initial model with rows for the new tokens."""
        training = self._recipe.training
        found = build_network(self._recipe.model, self._prepared, self.renderer, training.seed)
        if training.tuning == "lora":
            found = adapted(found, training, self.renderer)
        if training.activation_checkpointing:
            found.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._hidden, self._cost = found.config.hidden_size, cost_of(found)
        return found

    def objective(self, network: Any) -> nn.Module:
        """The network with its loss."""
        return Objective(network, self._recipe.training, self.renderer.label_token_ids)

    def batches(self, rows: NDArray[np.int64], step: int, parts: Sequence[slice]) -> list[Batch]:
        """Slices of equal size of the step's batch of training rows; augmentation is drawn for the whole batch."""
        rng = np.random.default_rng([self._recipe.training.seed, step, 1])
        prompts = [self._augmented(int(row), rng) for row in rows]
        lengths = np.array([len(prompt) for prompt in prompts])
        ids = np.full((len(rows), int(lengths.max())), self.renderer.pad_id, dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        targets = self._text_targets(ids, lengths)
        keep_blh, keep_bh = self._dropout(step, ids.shape)
        wanted = int((targets != IGNORED).sum())
        shares = len(rows) // (parts[0].stop - parts[0].start)
        outputs = len(rows) + (wanted if self._recipe.training.language_model_weight else 0)
        return [
            Batch(
                ids_bl=torch.from_numpy(ids[part]),
                last_b=torch.from_numpy(lengths[part] - 1),
                labels_b=torch.from_numpy(self.train.labels[rows][part]),
                targets_bl=torch.from_numpy(targets[part]),
                keep_blh=None if keep_blh is None else keep_blh[part],
                keep_bh=None if keep_bh is None else keep_bh[part],
                target_share=float(wanted) / shares,
                step_tokens=int(lengths.sum()),
                step_flops=step_flops(self._cost, lengths, outputs),
            )
            for part in parts
        ]

    def validation_log_odds(self, network: Any, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Uncalibrated log odds of these validation rows, shape (rows,)."""
        found = self.validation
        prompts = [
            self.renderer.assemble(self.renderer.feature_token_ids(found.buckets[row]), found.text(int(row)).tolist())
            for row in rows
        ]
        return score_prompts(network, self.renderer, prompts)

    def export_adapter(self, network: Any, folder: Path) -> None:
        """Write the adapter alone, unmerged, in peft's layout; nothing where none was trained. Before `export`."""
        if is_adapted(network):
            save_adapter(network, self._recipe.model, folder)

    def export(self, network: Any, calibration: Calibration, folder: Path) -> None:
        """Write the Hugging Face directory: weights as safetensors, configuration, tokenizer, signature.

        An adapter is merged into the network's own weights for it, so the network is done with training.
        """
        if is_adapted(network):
            network = network.merge_and_unload()
        network.save_pretrained(folder, safe_serialization=True)
        for name in (TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json"):
            (folder / name).write_bytes((self._prepared / name).read_bytes())
        for weights in folder.glob("*.safetensors"):
            weights.chmod(0o644)  # written for its owner only, while a server may run as another user
        signature = self.renderer.signature | {"calibration": calibration.to_dict()}
        (folder / SIGNATURE).write_text(json.dumps(signature, indent=1, sort_keys=True))

    def _augmented(self, row: int, rng: np.random.Generator) -> list[int]:
        """A training prompt with noise: buckets jitter to their neighbours, features, words and texts drop out."""
        training, renderer = self._recipe.training, self.renderer
        buckets, text = self.train.buckets[row], self.train.text(row)
        if training.bucket_jitter:
            moved = np.round(buckets + rng.normal(0.0, training.bucket_jitter, len(buckets))).astype(np.int64)
            buckets = np.where(buckets > 0, np.clip(moved, 1, renderer.bucket_counts), 0)
        features = renderer.feature_token_ids(buckets)
        if training.feature_dropout:
            features = np.where(rng.random(len(features)) < training.feature_dropout, renderer.unknown_id, features)
        if training.text_dropout and rng.random() < training.text_dropout:
            text = text[:0]
        if training.token_dropout:
            text = np.where(rng.random(len(text)) < training.token_dropout, renderer.unknown_id, text)
        return renderer.assemble(features, text.tolist())

    def _text_targets(self, ids_bl: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        targets = np.full_like(ids_bl, IGNORED)
        targets[:, :-1] = ids_bl[:, 1:]
        place = np.arange(ids_bl.shape[1])[None, :]
        is_text = (place >= len(self.renderer.features)) & (place + 1 < lengths[:, None] - 1)
        return np.where(is_text & (targets != self.renderer.unknown_id), targets, IGNORED)

    def _dropout(self, step: int, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
        share = self._recipe.training.embedding_dropout
        if not share:
            return None, None
        seeded = torch.Generator().manual_seed(
            int(np.random.SeedSequence([self._recipe.training.seed, step, 2]).generate_state(1)[0])
        )
        kept = [torch.rand(*size, self._hidden, generator=seeded) >= share for size in (shape, shape[:1])]
        return kept[0] / (1.0 - share), kept[1] / (1.0 - share)
