"""The Kubeflow step `train`."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    training_set: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    """Trains the recipe's model with DeepSpeed from its newest good checkpoint and exports it as safetensors.

    Args:
        home: Folder that holds the state of all runs.
        run_id: Identifier of the pipeline run.
        recipe: The resolved recipe as JSON.
        code_version: Revision of the code, part of the cache key.
        training_set: Point-in-time correct rows, split by time.
        model: Hugging Face directory and its record.
        metrics: Final losses and speed.

    Returns:
        Digest of the model directory.
    """
    from pathlib import Path

    from components.core.digest import canonical_json
    from components.core.publish import write_atomic
    from components.core.steps import running
    from components.models.signing import Signer
    from components.tracking.mlflow_tracking import Tracking
    from components.training.train import train as train_model

    with running("train", home, run_id, recipe) as step:
        found = train_model(step.recipe, Path(training_set.path), Path(model.path), step.home.checkpoints,
                            Tracking.at(step.home), run_id, step.log_path("train"), code_version,
                            sign=Signer.at(step.home).sign)  # fmt: skip
        model.metadata["digest"] = found.digest
        for name, value in found.metrics.items():
            metrics.log_metric(name, float(value))
        write_atomic(Path(metrics.path), canonical_json(metrics.metadata))  # without its file the step is not cached
        step.keep(found)
        return found.digest
