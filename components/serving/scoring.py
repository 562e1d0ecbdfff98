"""One way to ask a model server for label probabilities, used by the scoring service, the probe and the golden set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ARM_HEADER = "x-pilotline-arm"
REQUEST_ID_HEADER = "x-request-id"
COMPLETIONS = "/v1/completions"


class InvalidAnswerError(ValueError):
    """A model server answered, but not with finite log probabilities of the labels from the model that was asked."""


class WrongModelError(InvalidAnswerError):
    """Another model than the one that was asked answered."""


def scoring_request(served_name: str, token_ids: Sequence[int], label_token_ids: Sequence[int]) -> dict[str, Any]:
    """Body of /v1/completions that asks for the labels' log probabilities after a prompt of token ids.

    The labels are asked for by id: among the top 20 they are often absent. The salt keeps a version's part of the
    server's prefix cache apart, whatever else the server serves.
    """
    return {
        "model": served_name,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 0,
        "logprob_token_ids": list(label_token_ids),
        "return_tokens_as_token_ids": True,
        "cache_salt": served_name,
    }


def label_logprobs(body: Any, served_name: str, label_token_ids: Sequence[int]) -> tuple[float, float]:
    """(negative, positive) log probabilities from the answer.

    Raises:
        WrongModelError: another model answered.
        InvalidAnswerError: a label is absent or not a finite number.
    """
    if isinstance(body, Mapping) and body.get("model") not in (None, served_name):
        raise WrongModelError(f"model {str(body['model'])[:80]!r} answered, {served_name!r} was asked")
    try:
        answered_by = body["model"]
        top: Mapping[str, Any] = body["choices"][0]["logprobs"]["top_logprobs"][0]
        found = [float(top[f"token_id:{token}"]) for token in label_token_ids]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidAnswerError(f"no label probabilities in the answer ({type(error).__name__})") from error
    if answered_by != served_name:
        raise InvalidAnswerError(f"no model is named in the answer, {served_name!r} was asked")
    if len(found) != 2 or not all(math.isfinite(value) and value <= 1e-3 for value in found):
        raise InvalidAnswerError("the labels' log probabilities are not finite numbers")
    return found[0], found[1]
