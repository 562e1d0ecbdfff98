"""Signs of life through long work, and what MLflow is told of a run that did not end by itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from components.core.errors import TransientError, UserError
from components.training import beats
from components.training.beats import Beat, Silence, shown_by
from components.training.restart import ToldToEndError
from components.training.train import _end_tracking


class Heard:
    """Stands in for the forwarder; keeps what the run was ended with."""

    def __init__(self) -> None:
        self.statuses: list[str] = []

    def close(self, status: str) -> None:
        """Keep it."""
        self.statuses.append(status)


def test_each_batch_of_a_validation_is_a_sign_and_one_that_hangs_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network shows itself while it computes, at any depth, and leaves nothing of it behind."""
    monkeypatch.setattr(beats, "EVERY_SECONDS", 0.0)
    network = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.ReLU())
    beat, sign = Beat(tmp_path, 0), tmp_path / "rank-0"
    with shown_by(network, beat):
        assert not sign.exists()
        for _ in range(2):
            network[0](torch.ones(1, 2))  # a family may call a part of the network alone
            assert sign.exists()
            sign.unlink()
    network(torch.ones(1, 2))
    assert not sign.exists()


def test_an_export_that_grows_is_no_hang_and_one_that_stands_still_is(tmp_path: Path) -> None:
    """The folder that is being written speaks for its rank, which shows nothing meanwhile."""
    (tmp_path / "beats").mkdir()
    (tmp_path / "beats" / "rank-0").touch()
    export = tmp_path / "export"
    silence = Silence(tmp_path / "beats", export)
    (export / "model").mkdir(parents=True)
    began = time.monotonic()
    for size in range(4):
        silence.look()
        time.sleep(0.05)
        (export / "model" / "weights").write_bytes(b"x" * size)
        assert silence.look()[0] < 0.05
    assert time.monotonic() - began >= 0.2
    time.sleep(0.1)
    quiet, slowest = silence.look()
    assert quiet >= 0.1
    assert slowest == "rank-0"


@pytest.mark.parametrize(
    ("error", "statuses"),
    [
        (UserError("diverged"), ["FAILED"]),
        (TransientError("a rank died"), ["FAILED"]),
        (ToldToEndError("saved step 5; run again"), ["KILLED"]),
        (KeyboardInterrupt(), ["KILLED"]),
        (ToldToEndError("it goes on elsewhere", goes_on=True), []),
    ],
)
def test_a_run_that_was_told_to_end_is_killed_and_has_not_failed(error: BaseException, statuses: list[str]) -> None:
    """A preempted job's run says KILLED, one that goes on elsewhere still runs."""
    heard = Heard()
    _end_tracking(heard, error)  # type: ignore[arg-type]
    assert heard.statuses == statuses
