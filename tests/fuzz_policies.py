"""Every scheduler that the shared tests run on. A new policy adds one line here."""

from fuzz import Policy

POLICIES = (
    Policy("default", None, same_as_vllm="always"),
    Policy("passthrough", "my_scheduler.PassthroughScheduler", same_as_vllm="always"),
    Policy("kv-peak", "my_scheduler.KVPeakScheduler", same_as_vllm="always"),
    Policy("prefill-first", "my_scheduler.StepExclusivePrefillFirstScheduler", pure=True),
    Policy(
        "prefill-first-2",
        "my_scheduler.StepExclusivePrefillFirstScheduler",
        {"max_prefill_steps": 2},
        pure=True,
    ),
    Policy("sjf", "my_scheduler.SJFScheduler"),
    Policy("sjf-plain", "my_scheduler.SJFScheduler", {"aging_tokens_per_s": 0}),
    Policy("decode-first", "my_scheduler.PureDecodeFirstScheduler", pure=True),
    Policy("decode-first-fill", "my_scheduler.PureDecodeFirstScheduler", {"fill": True}, pure=True),
    Policy("fair-share", "my_scheduler.FairShareScheduler"),
    Policy("adaptive", "my_scheduler.AdaptiveChunkScheduler", {"itl_target_ms": 4.0}),
    Policy("adaptive-linear", "my_scheduler.AdaptiveChunkScheduler", {"rule": "linear"}),
    Policy("dla", "my_scheduler.DLAScheduler", same_as_vllm="unpredicted"),
    Policy(
        "dla-victim-only",
        "my_scheduler.DLAScheduler",
        {"victim": "remaining_per_context", "admission": "off"},
        same_as_vllm="unpredicted",
    ),
    Policy(
        "dla-least-computed",
        "my_scheduler.DLAScheduler",
        {"victim": "least_computed", "admission": "future_peak"},
        same_as_vllm="unpredicted",
    ),
    Policy(
        "dla-admission-only",
        "my_scheduler.DLAScheduler",
        {"victim": "upstream", "admission": "reserve"},
        same_as_vllm="unpredicted",
    ),
    Policy("dla-srpt", "my_scheduler.DLASRPTScheduler"),
    Policy("disabled", "my_scheduler.DLASRPTScheduler", {"disabled": True}, same_as_vllm="always"),
)
