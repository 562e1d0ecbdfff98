"""Recipe sections about what happens in front of users: serving, rollout, monitoring."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.core.sections.base import Count, Natural, Positive, Section, Share
from components.core.sections.cluster import ServingCluster


class Serving(Section):
    """The engine that answers, the decision made of its score, and what is kept of it.

    keep_text: of a request's text the decision log keeps nothing, its sha256 (`hash`), the text with e-mail addresses,
        phone, card and social security numbers masked (`plain`), or the text under the subject's key (`encrypted`).
    subject: the entity whose data is kept under a key of its own, entities and features always, and which
        `pilotline decisions forget` destroys; "" names none.
    log_store: folder or fsspec URL of the log's Parquet parts; "" = `decisions` in the home.
    log_part_minutes: how often settled rows move there; log_days: what is older is deleted, 0 keeps it.
    review_from, review_below: a score in [from, below) is marked for a person to look at; equal ones mark none.
    fallback: where no arm answers, or features are missing or late: `refuse` (503), `baseline` (baseline_score), or
        `last_known`: the entity's last features, and the last answer to the same question, of last_known_seconds.
    unknown_entity: nothing is known of it: `score` it all the same, `refuse` (422), or `fallback`.
    max_in_flight: requests worked on at once; more are answered 429.
    canary_seconds: a drawn canary that has not answered by then is given up and stable is asked, never later than at
        half of the time that is left; 0 waits for that half. Either way the canary's draw has failed.
    adapter_base: folder of the base model, in Hugging Face's layout, on which versions are served as LoRA adapters by
        one vLLM server (their merged weights stay what is registered and checked); "" serves each version whole.
    stream_seconds: for a whole streamed answer; request_timeout_seconds is for its first byte and between two.
    """

    engine: Literal["auto", "vllm", "reference"] = "auto"
    backend: Literal["local", "kubernetes"] = "local"  # where replicas run: processes of this machine, or a cluster
    cluster: ServingCluster = ServingCluster()
    threshold: Share = 0.5
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    max_sequences: Count = 16
    kv_cache_gib: Positive = 1.0
    start_timeout_seconds: Positive = 300.0
    request_timeout_seconds: Positive = 10.0
    canary_seconds: Annotated[float, Field(ge=0.0, le=3600.0)] = 0.0
    stream_seconds: Annotated[float, Field(gt=0.0, le=86_400.0)] = 600.0
    adapter_base: Annotated[str, Field(max_length=1024, pattern=r"^[^\n\r\x00]*$")] = ""
    keep_text: Literal["none", "hash", "plain", "encrypted"] = "none"
    subject: Annotated[str, Field(max_length=128)] = ""
    log_store: Annotated[str, Field(max_length=1024)] = ""
    log_part_minutes: Annotated[float, Field(gt=0.0, le=1440.0)] = 15.0
    log_days: Annotated[int, Field(ge=0, le=36_500)] = 0
    review_from: Share = 0.0
    review_below: Share = 0.0
    fallback: Literal["refuse", "last_known", "baseline"] = "refuse"
    baseline_score: Share = 0.0
    last_known_seconds: Annotated[float, Field(gt=0.0, le=86_400.0)] = 3600.0
    unknown_entity: Literal["score", "refuse", "fallback"] = "score"
    max_in_flight: Annotated[int, Field(ge=1, le=10_000)] = 256
    port: Annotated[int, Field(ge=0, le=65535)] = 0  # of the scoring service on 127.0.0.1; 0 takes a free one


class Rollout(Section):
    """Golden set, shadow, steps of weight and their margins; see the canary verdict's documentation.

    strategy: `canary` serves both versions side by side; `recreate` ends the champion's server before the candidate's
        starts, for machines that have no room for both: nobody is answered in between, and the report says how long.
    error_margin, error_margins: the canary passes where its failure rate is proved to exceed stable's by less; one
        number a step (below 100) in error_margins, or error_margin in each.
    harm_margin: it is aborted where the rate is proved to exceed stable's by more; 0 takes a tenth of error_margin.
    extend_seconds: a stage that saw requests and proved nothing by its deadline goes on for this long, once.
    sticky: the draw is a hash of the entity, so that a customer sees one version; entities are then what is counted.
    bake_seconds: after the steps the canary holds 95 % for this long before it gets all traffic; 0 leaves it out.
    warm_seconds: the old version stays up for this long after the switch, as the way back, before it is drained.
    """

    strategy: Literal["canary", "recreate"] = "canary"
    bake_seconds: Annotated[float, Field(ge=0.0, le=86_400.0)] = 0.0
    warm_seconds: Annotated[float, Field(ge=0.0, le=86_400.0)] = 0.0
    golden_requests: Count = 64
    golden_tolerance: Positive = 0.001  # absolute difference of a served score and the evaluated one
    shadow_requests: Natural = 200
    steps: Annotated[tuple[int, ...], Field(min_length=1)] = (50,)  # percent of traffic
    min_canary_requests: Count = 100
    requests_per_second: Positive = 30.0
    slo_requests: Count = 150
    slo_p95_ms: Positive = 1000.0
    slo_error_rate: Share = 0.01
    error_margin: Share = 0.05
    error_margins: tuple[Share, ...] = ()
    harm_margin: Share = 0.0
    latency_ratio: Positive = 2.0
    score_shift: Share = 0.05
    deadline_seconds: Positive = 150.0
    extend_seconds: Annotated[float, Field(ge=0.0, le=86_400.0)] = 0.0
    sticky: bool = False
    alpha: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    seed: int = 0


class Monitoring(Section):
    """When decisions and feedback ask for a retraining."""

    max_psi: Positive = 0.2
    min_rows: Count = 500
