"""Is this replica ready? It is when it scores the golden request as registered. Standard library only.

    python3 ready.py golden.json

Exit 0 where the score is within the tolerance, 1 with the reason in one line where it is not. It runs inside the model
server's container, so that no port is opened for it; the request is the scoring service's own.
"""

import json
import math
import sys
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 30.0


def problem(golden: dict[str, Any]) -> str:
    """What is wrong with the replica, or nothing: url, body, labels, calibration, score and tolerance in a mapping."""
    try:
        answer = _post(golden["url"] + "/v1/completions", golden["body"])
        top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        negative, positive = (float(top[f"token_id:{label}"]) for label in golden["body"]["logprob_token_ids"])
    except (OSError, ValueError, KeyError, IndexError, TypeError, urllib.error.URLError) as error:
        return f"no label probabilities from it ({type(error).__name__})"
    if answer.get("model") != golden["body"]["model"]:
        return f"it answers as {str(answer.get('model'))[:80]!r}, not as {golden['body']['model']!r}"
    odds = golden["slope"] * (positive - negative) + golden["intercept"]
    if not math.isfinite(odds):
        return "its label probabilities are no numbers"
    score = 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, odds))))
    if not abs(score - golden["score"]) <= golden["tolerance"]:
        told = f"registered is {golden['score']:.6f} (tolerance {golden['tolerance']:g})"
        return f"it scores the golden request {score:.6f}, {told}"
    return ""


def _post(url: str, body: dict[str, Any]) -> Any:
    about = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), about)  # noqa: S310 - always http to this pod
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        return json.loads(answer.read(1 << 20))


def main(path: str) -> int:
    """Print the reason and return the exit status."""
    with open(path, encoding="utf-8") as file:
        found = problem(json.load(file))
    print(found or "ready")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
