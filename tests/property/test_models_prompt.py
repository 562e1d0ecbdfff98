"""The renderer on arbitrary text: one prompt everywhere, bounded, and nothing smuggled in."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.models.causal_lm.prepare import encode
from components.models.causal_lm.prompt import Renderer
from components.models.text import cut, normalise
from tests.fakes.training_case import prepared_model

LOOK_ALIKES = ["<yes>", "<no>", "<ans>", "</s>", "<s>", "<pad>", "<visits=3>"]
LOOK_ALIKES += ["\uff1cyes\uff1e", "\ufe64yes\ufe65", "<\u200byes>", "\u2581<yes>"]
TEXTS = st.lists(st.one_of(st.text(max_size=30), st.sampled_from(LOOK_ALIKES)), max_size=12).map("".join)
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """The renderer of a model with random weights."""
    return Renderer.load(prepared_model(tmp_path_factory.mktemp("prompt")))


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, visits=NUMBERS, share=NUMBERS)
def test_prompts_are_bounded_and_text_cannot_hold_special_tokens(
    renderer: Renderer, text: str, visits: float | None, share: float | None
) -> None:
    """Begin, a bucket a feature, ordinary tokens, answer: whatever the text spells."""
    ids = renderer.token_ids({"visits": visits, "share": share}, text)
    tokenizer = renderer._tokenizer
    special = {i for i in range(tokenizer.get_vocab_size()) if tokenizer.id_to_token(i)[0] == "<"}
    special.discard(renderer.unknown_id)
    assert len(ids) <= renderer.max_tokens
    assert tokenizer.id_to_token(ids[0]) == "<s>"
    assert tokenizer.id_to_token(ids[-1]) == "<ans>"
    for at, (name, count) in enumerate(zip(renderer.features, renderer.bucket_counts, strict=True), start=1):
        assert tokenizer.id_to_token(ids[at]) in {f"<{name}={bucket}>" for bucket in range(count + 1)}
    assert not special & set(ids[3:-1])


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, NUMBERS, NUMBERS), min_size=1, max_size=6))
def test_training_evaluation_and_serving_render_the_same_prompt(
    renderer: Renderer, rows: list[tuple[str, float | None, float | None]]
) -> None:
    """Rows encoded for training, a frame for evaluation and single requests give identical token ids."""
    frame = pd.DataFrame(
        {
            "text": [text for text, _, _ in rows],
            "visits": [np.nan if a is None else a for _, a, _ in rows],
            "share": [np.nan if b is None else b for _, _, b in rows],
            "label": np.zeros(len(rows), dtype="int8"),
        }
    )
    serving = [renderer.token_ids({"visits": a, "share": b}, text) for text, a, b in rows]
    encoded = encode(renderer, frame)
    training = [
        renderer.assemble(renderer.feature_token_ids(encoded.buckets[row]), encoded.text(row).tolist())
        for row in range(len(rows))
    ]
    assert renderer.frame_token_ids(frame) == serving == training


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_normalised_text_is_closed(text: str) -> None:
    """No bracket, no digit, no upper case, no double space; normalising again changes nothing but masked runs."""
    plain = normalise(text, 64)
    assert not set("<>$_\n\t") & set(plain)
    assert "  " not in plain
    assert plain == plain.strip()
    assert not any(c.isascii() and (c.isdigit() or c.isupper()) for c in plain)


@pytest.mark.parametrize("code", [0xD800, 0xDFFF, 0xDC41])
def test_half_of_a_surrogate_pair_is_read_as_no_character(renderer: Renderer, code: int) -> None:
    """Text of either form has bytes afterwards and is encoded; a whole pair, a character, stays."""
    half = chr(code)
    text = f"road {half} stone \U0001f600"
    for read in (cut, normalise):
        assert half not in read(text, 64)
        read(text, 64).encode()
    assert cut(text, 64) == "road \ufffd stone \U0001f600"
    assert renderer.text_token_ids([text])


def test_a_megabyte_of_text_costs_no_more_than_its_first_part(renderer: Renderer) -> None:
    """Text beyond what can be read is cut before work is done on it."""
    import time

    began = time.process_time()
    ids = renderer.token_ids({"visits": 1.0, "share": 0.5}, "<yes> 1/1/" * 300_000)
    assert time.process_time() - began < 0.1
    assert len(ids) <= renderer.max_tokens
