"""An initial model made on the spot: a small random Llama with a byte-level tokenizer, as a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fakes.training_case import BAD, GOOD, NEUTRAL

WORDS = ("yes", "no", "maybe")


def tiny_initial(folder: Path, *, tied: bool = True, hidden: int = 32) -> Path:
    """Write config, tokenizer and safetensors; "yes" and "no" are tokens of its own, "perhaps" is not."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*GOOD, *BAD, *NEUTRAL, *WORDS[:2] * 50], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>")
    wrapped.save_pretrained(folder)
    torch.manual_seed(3)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=hidden,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
            attention_dropout=0.1,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    network.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is tied
    return folder
