"""Kubeflow component: featurise."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def featurise(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    clean: dsl.Input[dsl.Dataset],
    training_set: dsl.Output[dsl.Dataset],
) -> str:
    """Make point-in-time correct features with Feast, split the rows in time and fill the online store.

    Args:
        home: Folder that holds all state of Pilotline.
        run_id: The run that this step belongs to.
        recipe: The resolved recipe as JSON.
        code_version: Version of the code; part of the cache key.
        clean: Rows that passed the data contract.
        training_set: Train, validation and test rows with features, their statistics and the online store.

    Returns:
        The training set's digest.
    """
    import json
    import os
    from pathlib import Path

    from components.core.steps import running
    from components.features.featurise import featurise as make

    with running("featurise", home, run_id, recipe) as step:
        record = make(step.recipe, Path(clean.path), Path(training_set.path), step.home.known)
        training_set.metadata["digest"] = record.digest
        training_set.metadata["rows"] = {split.name: split.rows for split in record.splits}
        step.keep(record)
        step.say(record.notes)
        step.keep_beside("training_set", {"path": os.path.relpath(training_set.path, step.home.root)})
        step.keep_beside("statistics", json.loads((Path(training_set.path) / "statistics.json").read_text()))
        return record.digest
