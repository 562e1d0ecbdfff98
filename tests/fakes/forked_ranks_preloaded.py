"""Imported once by the fork server: what launcher and ranks load, before they are forked."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import components.models.causal_lm.task
import components.training.train
import components.training.worker  # noqa: F401
from components.models.spec import spec_for
from components.training.engine import _deepspeed

_deepspeed()
_ = spec_for("causal_lm").task, spec_for("causal_lm").preparation
for _name in (  # what they load when they first need it: seconds of every rank that is forked
    "deepspeed.runtime.zero.stage3",
    "pandas",
    "peft",
    "pyarrow.dataset",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
):
    importlib.import_module(_name)


def nan_at_step_7() -> None:
    """The eighth step's loss is no number, whoever computes it."""
    from components.training.worker import Rank

    forward_backward = Rank.one_step

    def one_step(self: Rank) -> None:
        usual = self.engine.forward_backward
        if self.state.step == 7:
            self.engine.forward_backward = lambda batches: usual(batches) * float("nan")  # type: ignore[method-assign]
        forward_backward(self)
        self.engine.forward_backward = usual  # type: ignore[method-assign]

    Rank.one_step = one_step  # type: ignore[method-assign]


def nan_at_every_step() -> None:
    """No step's loss is a number."""
    from components.training.engine import Engine

    usual = Engine.forward_backward
    Engine.forward_backward = lambda self, batches: usual(self, batches) * float("nan")  # type: ignore[method-assign]


def leap_at_step_17() -> None:
    """The eighteenth step's loss is fifty times what it was."""
    from components.training.worker import Rank

    usual_step = Rank.one_step

    def one_step(self: Rank) -> None:
        usual = self.engine.forward_backward
        if self.state.step == 17:
            self.engine.forward_backward = lambda batches: usual(batches) * 50.0  # type: ignore[method-assign]
        usual_step(self)
        self.engine.forward_backward = usual  # type: ignore[method-assign]

    Rank.one_step = one_step  # type: ignore[method-assign]


def disk_fills_at_step_10() -> None:
    """No file may grow beyond a thousand bytes from the second checkpoint on."""
    import resource

    from components.training.saving import Saver

    usual = Saver.save

    def save(self: Saver) -> None:
        if self._rank.state.step == 10:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        usual(self)

    Saver.save = save  # type: ignore[method-assign]


def disk_is_filled_at_step_10() -> None:
    """The job's file system, a small one of the test's own, has no block left from the second checkpoint on."""
    from components.training.saving import Saver

    usual = Saver.save

    def save(self: Saver) -> None:
        if self._rank.state.step == 10 and self._rank.chief:
            with (self._job.folder.parent / "ballast").open("wb", buffering=0) as stream, suppress(OSError):
                while True:
                    stream.write(bytes(4096))
        usual(self)

    Saver.save = save  # type: ignore[method-assign]


def error_in_rank_1() -> None:
    """Rank 1 meets an error that trying again mends, at its ninth step, once."""
    from pathlib import Path

    from components.training.worker import Rank

    usual = Rank.one_step

    def one_step(self: Rank) -> None:
        once = Path(self.job.folder).parent / "error-was-there"
        if self.state.step == 8 and self.engine.rank == 1 and not once.exists():
            once.touch()
            raise RuntimeError("the link to the other rank broke")
        usual(self)

    Rank.one_step = one_step  # type: ignore[method-assign]
