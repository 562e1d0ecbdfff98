"""Scores of many rows with transformers on the CPU in fp32, for evaluation and as the yardstick of serving."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from components.core.errors import IntegrityError
from components.models.calibration import Calibration
from components.models.causal_lm.network import trunk
from components.models.causal_lm.prompt import Renderer
from components.models.files import check_files

if TYPE_CHECKING:
    import pandas as pd

ROWS_PER_BATCH = 128


class Scorer:
    """An exported model loaded for scoring."""

    def __init__(self, model_dir: Path) -> None:
        check_files(model_dir)
        self.renderer = Renderer.load(model_dir)
        self.network = _load(model_dir)
        self._calibration = Calibration(**self.renderer.signature["calibration"])

    def score(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Calibrated probability of the positive label for rows with the training set's columns, shape (rows,)."""
        return self._calibration.probability(self.log_odds(frame))

    def log_odds(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Uncalibrated logprob_positive - logprob_negative, shape (rows,)."""
        return score_prompts(self.network, self.renderer, self.renderer.frame_token_ids(frame))


def score_prompts(network: Any, renderer: Renderer, prompts: list[list[int]]) -> NDArray[np.float64]:
    """Log odds of the positive label after each prompt, in the order given.

    Prompts of like length go together; padding is on the right, where a causal model cannot see it.
    """
    import torch

    odds = np.empty(len(prompts), dtype=np.float64)
    device = network.device
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    negative, positive = renderer.label_token_ids
    was_training = network.training
    network.eval()
    with torch.inference_mode():
        for start in range(0, len(order), ROWS_PER_BATCH):
            rows = order[start : start + ROWS_PER_BATCH]
            width = max(len(prompts[row]) for row in rows)
            padded = [prompts[row] + [renderer.pad_id] * (width - len(prompts[row])) for row in rows]
            ids = torch.tensor(padded, device=device)
            last = torch.tensor([len(prompts[row]) - 1 for row in rows], device=device)
            hidden = trunk(network)(input_ids=ids, use_cache=False).last_hidden_state
            logits = network.get_output_embeddings()(hidden[torch.arange(len(rows), device=device), last])
            odds[rows] = (logits[:, positive] - logits[:, negative]).double().cpu().numpy()
    network.train(was_training)
    return odds


def _load(model_dir: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        network: Any = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, use_safetensors=True, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # many kinds: safetensors, JSON, shape mismatches
        raise IntegrityError(f"{model_dir}: the model does not load ({error}); train the model again") from error
    return network.eval()
