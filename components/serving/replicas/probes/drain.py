"""Before SIGTERM: let the routers forget this pod, then wait until no request is under way. Standard library only.

    python3 drain.py http://127.0.0.1:8000 SECONDS_TO_FORGET SECONDS_TO_DRAIN

vLLM drops requests in flight on SIGTERM. Exit 0 always: whatever happens here, the pod ends; what was left is printed.
"""

import sys
import time
import urllib.request

BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")
QUIET_LOOKS = 3  # in a row: a request may be between two counters


def in_flight(text: str) -> float | None:
    """Requests running and waiting by Prometheus text; None where it tells neither."""
    found = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(BUSY)]
    return sum(found) if found else None


def main(url: str, forget: str, drain: str) -> int:
    """Wait, then watch."""
    time.sleep(float(forget))
    until, quiet = time.monotonic() + float(drain), 0
    left: float | None = None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while quiet < QUIET_LOOKS and time.monotonic() < until:
        try:
            with opener.open(url + "/metrics", timeout=5) as answer:
                left = in_flight(answer.read(1 << 24).decode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            print(f"drain: no metrics ({type(error).__name__}); the server is gone")
            return 0
        quiet = quiet + 1 if left == 0 else 0
        time.sleep(0.2)
    print("drain: idle" if quiet else f"drain: {left} requests left")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
