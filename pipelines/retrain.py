"""The retraining pipeline: from a source to a promoted model, or to the reason why not."""

from typing import Any

from kfp import dsl

from components.contract.component import guard, validate
from components.core.recipe import Resources, Training
from components.evaluation.component import evaluate
from components.features.component import featurise
from components.ingestion.component import ingest
from components.registry.component import promote, register
from components.rollout.component import rollout
from components.training.component import train
from pipelines.finish import finish
from pipelines.gpu_pools import apply_profile

NAME = "pilotline-retrain"


def pipeline(profile: str = "laptop", resources: Resources | None = None, training: Training | None = None) -> Any:
    """The pipeline function for a profile and a recipe's resources, which change only platform settings.

    Of the training section only ranks and back-end are read: they say how many GPUs the training step asks for.
    """

    @dsl.pipeline(name=NAME, display_name="Pilotline: retrain, gate, canary, promote", description=__doc__)
    def retrain(
        recipe: str,
        home: str,
        run_id: str,
        code_version: str = "unversioned",
        expected_digest: str = "",
        engine: str = "auto",
        started_by: str = "",
    ) -> None:
        """Retrain and ship one model.

        Args:
            recipe: The resolved recipe as JSON; `pilotline compile --recipe NAME` puts it in as the default.
            home: Folder that holds all state (a mounted volume in a cluster).
            run_id: Name of this run; the same id resumes.
            code_version: Digest of the code and of the contract and feature repository.
            expected_digest: The snapshot to use where it was taken before; empty reads the source.
            engine: Serving engine: auto, vllm or reference.
            started_by: Who submitted the run; empty takes what the home notes.
        """
        common = {"home": home, "run_id": run_id, "recipe": recipe, "code_version": code_version}

        # run_id is in every cache key: a step is reused when its own run is resumed, never by another run. The first
        # step too: the key of a later one holds where its input lies, so one step that moves would repeat all.
        def placed(task: dsl.PipelineTask, title: str, cached: bool = True) -> dsl.PipelineTask:
            task.set_display_name(title)
            task.set_caching_options(cached)
            apply_profile(task, task.component_spec.name, profile, resources, training)
            return task

        last = placed(finish(**common), "Outcome and report", cached=False)
        with dsl.ExitHandler(last, name="chain"):
            read = placed(ingest(expected_digest=expected_digest, **common), "Ingest a snapshot")
            held = placed(validate(snapshot=read.outputs["snapshot"], **common), "Validate the contract")
            with dsl.If(held.outputs["Output"] == True, name="contract holds"):  # noqa: E712 - builds a condition
                joined = placed(featurise(clean=held.outputs["clean"], **common), "Features, point in time")
                rows = joined.outputs["training_set"]
                guarded = guard(clean=held.outputs["clean"], training_set=rows, **common)
                safe = placed(guarded, "Guard against leakage")
                with dsl.If(safe.outputs["Output"] == True, name="nothing leaks"):  # noqa: E712
                    trained = placed(train(training_set=rows, **common), "Train with DeepSpeed")
                    model = trained.outputs["model"]
                    handed = guarded.outputs["handover"]
                    scored = evaluate(training_set=rows, model=model, handover=handed, **common)
                    judged = placed(scored, "Evaluate on test rows")
                    evidence = judged.outputs["evidence"]
                    verdicts = {"clean": held.outputs["clean"], "handover": handed}
                    gated = register(model=model, training_set=rows, evidence=evidence, **verdicts, **common)
                    kept = placed(gated, "Register and gate")
                    version = kept.outputs["version"]
                    with dsl.If(kept.outputs["Output"] == True, name="gate passes"):  # noqa: E712
                        served = rollout(engine=engine, version=version, training_set=rows, evidence=evidence, **common)
                        rolled = placed(served, "Canary on vLLM")
                        settled = promote(
                            version=version, report=rolled.outputs["report"], started_by=started_by, **common
                        )
                        placed(settled, "Promote, or note why not", cached=False)

    return retrain
