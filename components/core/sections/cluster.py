"""Recipe section about a cluster that serves: `serving.cluster`, read where serving.backend is kubernetes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.core.sections.base import Count, Section

Dns = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
HttpUrl = Annotated[str, Field(pattern=r"^(https?://[A-Za-z0-9.:\[\]-]{1,253}(:[0-9]{1,5})?)?$")]


class ServingCluster(Section):
    """Names of what deploy/kubernetes/serving makes, and the size of a version's Deployment.

    gateway, listener: where models are reached; gateway_url replaces the address that the Gateway's status tells.
    scoring_url, control_url: of the scoring service; "" takes its Services' names in `namespace`.
    accelerator: pool of the replicas, "" takes resources.accelerator; gpus: of a replica, 0 takes one where the pool
        has GPUs. Node selector, tolerations, cores and memory come from the pool.
    replicas, most_replicas: pods of a version; where the second is larger an autoscaler follows the requests that wait
        in vLLM's queue, `waiting_per_replica` a pod. `hpa` needs a metrics adapter, `keda` asks `prometheus_url`.
    """

    namespace: Dns = "pilotline-serving"
    route: Dns = "pilotline-model"
    gateway: Dns = "pilotline-models"
    listener: Dns = "models"
    gateway_url: HttpUrl = ""
    scoring_url: HttpUrl = ""
    control_url: HttpUrl = ""
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/:@-]{1,500}$")] = "vllm/vllm-openai:v0.32.0"
    accelerator: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?)?$")] = ""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    most_replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    waiting_per_replica: Count = 4
    autoscaler: Literal["hpa", "keda"] = "hpa"
    prometheus_url: HttpUrl = "http://prometheus-operated.monitoring.svc:9090"
