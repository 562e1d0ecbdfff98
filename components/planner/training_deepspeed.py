"""A plan as a DeepSpeed configuration."""

from __future__ import annotations

from typing import Any

from components.core.errors import UserError
from components.planner.training_plan import TrainingPlan


def deepspeed_config(plan: TrainingPlan) -> dict[str, Any]:
    """The configuration of a plan without tensor or pipeline parallelism.

    Raises:
        UserError: the plan does not fit, or has what DeepSpeed's configuration does not describe.
    """
    if not plan.feasible:
        raise UserError("plan train: an infeasible plan has no DeepSpeed configuration")
    if plan.precision in ("fp8", "fp4"):
        raise UserError(f"plan train: DeepSpeed's configuration has no {plan.precision}; ask for --precision bf16")
    if plan.cp > 1 or plan.ep > 1:
        raise UserError(
            "plan train: context and expert parallel are no part of a DeepSpeed configuration; leave them out"
        )
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
    if plan.precision in ("bf16", "pure_bf16"):
        config["bf16"] = {"enabled": True}
    if plan.precision == "fp16":
        config["fp16"] = {"enabled": True}
    return config
