"""Records what the engine did in each step, one JSON line a step.

The lines are what the client cannot see: which steps mixed prefill and decode, how long they
took, how full the KV pool was, what preemption cost. Times are ``time.monotonic()`` seconds, the
clock that ``vllm bench serve`` stamps its requests with on the same machine.

``t_s``, ``done_s``             schedule() entered; outputs of this step processed
``prefill_tokens``, ``decode_tokens``, ``prefill_requests``, ``decode_requests``
``running``, ``waiting``        requests after scheduling
``kv_blocks``                   blocks held by requests
``preemptions``                 requests preempted in this step
``recomputed_tokens``           scheduled tokens whose KV existed before a preemption
``ttft_ms``                     arrival to first token, for each request that got its first
``itl_ms``                      [[gap, how many requests], ...] since the previous token
``counters``                    the policy's own counters, when they changed: every 64 steps and
                                when the engine runs empty
"""

import json
import os
import time
from collections import Counter, deque
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

COUNTERS_EVERY_STEPS = 64


class StepRecorder:
    """Wraps three methods of one scheduler; a scheduler without a recorder runs no line of it."""

    def __init__(self, path: str, scheduler: Scheduler) -> None:
        """Opens ``path`` for writing; raises OSError when that fails.

        With data parallelism each engine writes its own file (``steps.dp1.jsonl``).
        """
        rank = scheduler.vllm_config.parallel_config.data_parallel_index
        if rank:
            root, suffix = os.path.splitext(path)
            path = f"{root}.dp{rank}{suffix}"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        self._scheduler = scheduler
        self._in_flight: deque[tuple[SchedulerOutput, dict[str, Any]]] = deque()
        self._computed_before: dict[str, int] = {}
        self._last_token_s: dict[str, float] = {}
        self._arrival_s: dict[str, float] = {}
        self._preempted = 0
        self._counters: Counter[str] = Counter()
        self._steps_to_counters = COUNTERS_EVERY_STEPS

    def attach(self) -> None:
        """Start recording: shadow the scheduler's methods with recording ones."""
        scheduler = self._scheduler
        schedule, update = scheduler.schedule, scheduler.update_from_output
        preempt = scheduler._preempt_request

        def recording_schedule(*args: Any, **kwargs: Any) -> SchedulerOutput:
            entered_s = time.monotonic()
            decoding = {r.request_id for r in scheduler.running if not r.is_prefill_chunk}
            output = schedule(*args, **kwargs)
            self._in_flight.append((output, self._composition(entered_s, decoding, output)))
            return output

        def recording_update(output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
            results = update(output, *args, **kwargs)
            while self._in_flight:
                scheduled, step = self._in_flight.popleft()
                if scheduled is output:
                    self._write(step, results)
                    break
            return results

        def recording_preempt(request: Request, *args: Any, **kwargs: Any) -> None:
            lost_before = self._computed_before.get(request.request_id, 0)
            lost_now = max(lost_before, request.num_computed_tokens)
            self._computed_before[request.request_id] = lost_now
            self._preempted += 1
            preempt(request, *args, **kwargs)

        scheduler.schedule = recording_schedule
        scheduler.update_from_output = recording_update
        scheduler._preempt_request = recording_preempt

    def _composition(
        self, entered_s: float, decoding: set[str], output: SchedulerOutput
    ) -> dict[str, Any]:
        decode_tokens = decode_requests = recomputed_tokens = 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            if request_id in decoding:
                decode_tokens += tokens
                decode_requests += 1
            if request_id in self._computed_before:
                recomputed_tokens += self._recomputed(request_id, tokens)
        for request in output.scheduled_new_reqs:
            arrived = self._scheduler.requests[request.req_id].arrival_time
            self._arrival_s.setdefault(request.req_id, arrived)
        for request_id in output.finished_req_ids:
            for memory in (self._computed_before, self._last_token_s, self._arrival_s):
                memory.pop(request_id, None)
        pool = self._scheduler.kv_cache_manager.block_pool
        running, waiting = self._scheduler.get_request_counts()
        preempted, self._preempted = self._preempted, 0
        return {
            "t_s": round(entered_s, 6),
            "prefill_tokens": output.total_num_scheduled_tokens - decode_tokens,
            "decode_tokens": decode_tokens,
            "prefill_requests": len(output.num_scheduled_tokens) - decode_requests,
            "decode_requests": decode_requests,
            "running": running,
            "waiting": waiting,
            # Block 0 is vLLM's null block: never free, never used.
            "kv_blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "preemptions": preempted,
            "recomputed_tokens": recomputed_tokens,
        }

    def _recomputed(self, request_id: str, tokens: int) -> int:
        end = self._scheduler.requests[request_id].num_computed_tokens
        lost_end = self._computed_before[request_id]
        if end >= lost_end:
            del self._computed_before[request_id]
        return max(0, min(end, lost_end) - (end - tokens))

    def _write(self, step: dict[str, Any], results: dict[int, Any]) -> None:
        now_s, wall_s = time.monotonic(), time.time()
        first_ms: list[float] = []
        gaps_ms: Counter[float] = Counter()
        for outputs in results.values():
            for item in outputs.outputs:
                if not item.new_token_ids:
                    continue
                previous_s = self._last_token_s.get(item.request_id)
                self._last_token_s[item.request_id] = now_s
                if previous_s is not None:
                    gaps_ms[round((now_s - previous_s) * 1e3, 3)] += 1
                elif item.request_id in self._arrival_s:
                    first_ms.append(round((wall_s - self._arrival_s[item.request_id]) * 1e3, 3))
        step |= {"done_s": round(now_s, 6), "ttft_ms": first_ms, "itl_ms": list(gaps_ms.items())}
        self._steps_to_counters -= 1
        if self._steps_to_counters <= 0 or not self._scheduler.has_unfinished_requests():
            self._add_counters(step)
        if self._is_worth_a_line(step):
            # One write() a line: what the kernel has survives an engine that is killed.
            os.write(self._file, (json.dumps(step, separators=(",", ":")) + "\n").encode())

    def _add_counters(self, step: dict[str, Any]) -> None:
        self._steps_to_counters = COUNTERS_EVERY_STEPS
        counters = self._scheduler.counters
        if counters != self._counters:
            self._counters = counters.copy()
            step["counters"] = dict(counters)

    @staticmethod
    def _is_worth_a_line(step: dict[str, Any]) -> bool:
        return (
            bool(step["prefill_tokens"] or step["decode_tokens"] or step["preemptions"])
            or "counters" in step
        )
