"""A two-step pipeline for the tests of the compiler and of the way into Kubeflow."""

from typing import Any

from kfp import dsl

from components.core.recipe import Resources
from pipelines.gpu_pools import apply_profile

IMAGE = "registry.example/pilotline-python:1"


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def ingest(source: str, rows: dsl.Output[dsl.Dataset]) -> int:
    """Write rows.

    Args:
        source: Where rows come from.
    """
    from pathlib import Path

    Path(rows.path).write_text(source * 3)
    return 3


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(rows: dsl.Input[dsl.Dataset], rate: float, model: dsl.Output[dsl.Model]) -> float:
    """Train a model.

    Args:
        rate: Learning rate.
    """
    from pathlib import Path

    Path(model.path).write_text(Path(rows.path).read_text())
    return rate


@dsl.component(base_image=IMAGE, install_kfp_package=False, packages_to_install=["numpy"])
def careless() -> int:
    """Install something when it starts."""
    return 1


def demo(profile: str = "laptop", resources: Resources | None = None) -> Any:
    """The demo pipeline with its steps placed for a profile."""

    @dsl.pipeline(name="demo-retrain", description="Two steps.")
    def pipeline(source: str, rate: float = 0.1, until: str = "") -> None:
        """Read and train.

        Args:
            source: Where rows come from.
            rate: Learning rate.
            until: End of the data interval.
        """
        read = ingest(source=source)
        apply_profile(read, "ingest", profile, resources)
        trained = train(rows=read.outputs["rows"], rate=rate)
        apply_profile(trained, "train", profile, resources)

    return pipeline


def careless_demo() -> Any:
    """A pipeline with a step that installs a package when it starts."""

    @dsl.pipeline(name="careless")
    def pipeline() -> None:
        careless()

    return pipeline
