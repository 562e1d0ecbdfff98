"""What the language-model head says of texts: how likely each is, and which of its tokens the model would write itself.

Shapes are suffixes of names: b rows of a batch, l tokens, v vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from components.models.causal_lm.score import Scorer

if TYPE_CHECKING:
    import pandas as pd

MOST_LOGITS = 16_000_000  # held at once: 64 MB


def text_traces(scorer: Scorer, frame: pd.DataFrame) -> list[tuple[float, NDArray[np.bool_]]]:
    """One forward pass over each row's prompt.

    Args:
        scorer: the loaded model.
        frame: rows with `text` and the model's features.

    Returns:
        For each row the mean log probability of its text tokens (nats; NaN without text) and, a text token each,
        whether it is the most likely one after all that stands before it. A run of those is what greedy decoding would
        reproduce word by word.
    """
    prompts = scorer.renderer.frame_token_ids(frame)
    first = 1 + len(scorer.renderer.features)  # begin and buckets stand before the text, the answer token after it
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    found: list[tuple[float, NDArray[np.bool_]]] = [(float("nan"), np.zeros(0, bool))] * len(prompts)
    vocabulary = int(scorer.network.config.vocab_size)
    start = 0
    while start < len(order):
        width = len(prompts[order[start]])
        size = max(1, min(128, MOST_LOGITS // (vocabulary * max(width, 1) * 2)))
        rows = order[start : start + size]
        for row, trace in zip(rows, _traced(scorer, [prompts[row] for row in rows], first), strict=True):
            found[row] = trace
        start += size
    return found


def _traced(scorer: Scorer, prompts: list[list[int]], first: int) -> list[tuple[float, NDArray[np.bool_]]]:
    import torch

    width = max(len(prompt) for prompt in prompts)
    ids_bl = torch.tensor([prompt + [scorer.renderer.pad_id] * (width - len(prompt)) for prompt in prompts])
    with torch.inference_mode():
        logits_blv = scorer.network(input_ids=ids_bl, use_cache=False).logits
        chosen_bl = logits_blv[:, :-1].gather(2, ids_bl[:, 1:, None])[..., 0] - logits_blv[:, :-1].logsumexp(2)
        best_bl = logits_blv[:, :-1].argmax(2) == ids_bl[:, 1:]
    traces = []
    for row, prompt in enumerate(prompts):
        text = slice(first - 1, len(prompt) - 2)  # of the predictions, one before the token; without the answer token
        likely = chosen_bl[row, text].double().numpy()
        traces.append((float(likely.mean()) if likely.size else float("nan"), best_bl[row, text].numpy().copy()))
    return traces
