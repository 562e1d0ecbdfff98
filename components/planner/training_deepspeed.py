"""A plan as a DeepSpeed configuration."""

from __future__ import annotations

from typing import Any

from components.core.errors import UserError
from components.planner.training_plan import TrainingPlan


def deepspeed_config(plan: TrainingPlan) -> dict[str, Any]:
    """The configuration of a plan without tensor or pipeline parallelism.

    Raises:
        UserError: the plan cuts the model, which DeepSpeed's configuration does not describe, or does not fit.
    """
    if not plan.feasible:
        raise UserError("plan train: an infeasible plan has no DeepSpeed configuration")
    if plan.tp * plan.pp > 1:
        raise UserError(
            f"plan train: TP {plan.tp} x PP {plan.pp} is not a DeepSpeed configuration; use Megatron, or fix tp and pp"
            " to 1"
        )
    zero: dict[str, Any] = {"stage": plan.zero_stage, "overlap_comm": True, "contiguous_gradients": True}
    if plan.offload in ("optimizer", "all"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if plan.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if plan.precision in ("bf16", "pure_bf16", "fp8", "fp4"):
        config["bf16"] = {"enabled": True}
    if plan.precision == "fp16":
        config["fp16"] = {"enabled": True}
    return config
