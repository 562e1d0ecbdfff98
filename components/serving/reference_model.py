"""A causal language model loaded with transformers, generating token by token with log probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.core.errors import IntegrityError

TOP = 20


class BadRequestError(ValueError):
    """A request that cannot be served; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Step:
    """One generated token: its log probability, the 20 most likely tokens, and the tokens that were asked for."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    asked: list[tuple[int, float]]


class LoadedModel:
    """Model and tokenizer; not safe from several threads at once."""

    def __init__(self, network: Any, tokenizer: Any, max_model_len: int) -> None:
        self._network, self._tokenizer = network, tokenizer
        self.max_model_len = max_model_len
        self.vocabulary = int(network.config.vocab_size)
        ends = network.generation_config.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])

    @classmethod
    def load(cls, model_dir: Path, dtype: str, max_model_len: int, threads: int) -> LoadedModel:
        """Load safetensors weights from a local folder, without code from it.

        Raises:
            IntegrityError: the folder does not load.
        """
        import torch
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        torch.set_num_threads(threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            network = AutoModelForCausalLM.from_pretrained(
                model_dir,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
            )
            tokenizer = PreTrainedTokenizerFast.from_pretrained(model_dir, local_files_only=True)
        except Exception as error:  # many kinds: safetensors, JSON, shape mismatches
            raise IntegrityError(f"{model_dir}: the model does not load ({error})") from error
        return cls(network.to(device).eval(), tokenizer, max_model_len)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token."""
        return token in self._ends

    def generate(
        self, prompt: Sequence[int], max_tokens: int, temperature: float, seed: int | None, asked: Sequence[int]
    ) -> Iterator[Step]:
        """Tokens after the prompt, greedy where temperature is 0, until `max_tokens` or an end token.

        Raises:
            BadRequestError: empty or too long prompt, or a token id outside the vocabulary.
        """
        import torch

        self._check(prompt, max_tokens, asked)
        generator = torch.Generator().manual_seed(seed if seed is not None else torch.seed() % 2**63)
        ids, cache = torch.tensor([list(prompt)], device=self._network.device), None
        with torch.inference_mode():
            for _ in range(max_tokens):
                out = self._network(
                    input_ids=ids, past_key_values=cache, use_cache=max_tokens > 1, logits_to_keep=1
                )  # the last position only
                logprobs = torch.log_softmax(out.logits[0, -1].float(), dim=-1).cpu()
                step = _step(logprobs, temperature, generator, asked)
                yield step
                if self.is_end(step.token):
                    return
                ids, cache = torch.tensor([[step.token]], device=self._network.device), out.past_key_values

    def _check(self, prompt: Sequence[int], max_tokens: int, asked: Sequence[int]) -> None:
        if not prompt:
            raise BadRequestError("You must pass at least one prompt token")
        if len(prompt) + max_tokens > self.max_model_len:
            raise BadRequestError(
                f"This model's maximum context length is {self.max_model_len} tokens; the prompt has {len(prompt)}, "
                f"max_tokens is {max_tokens}"
            )
        for token in (*prompt, *asked):
            if not 0 <= token < self.vocabulary:
                raise BadRequestError(f"Token id {token} is out of vocabulary")


def _step(logprobs: Any, temperature: float, generator: Any, asked: Sequence[int]) -> Step:
    import torch

    if temperature > 0:
        token = int(torch.multinomial(torch.softmax(logprobs / temperature, dim=-1), 1, generator=generator))
    else:
        token = int(logprobs.argmax())
    values, indices = torch.topk(logprobs, min(TOP, logprobs.numel()))
    top = [(int(i), float(v)) for i, v in zip(indices, values, strict=True)]
    return Step(token, float(logprobs[token]), top, [(i, float(logprobs[i])) for i in asked])
