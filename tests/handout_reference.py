"""The hand-out's strategies A and SJF, written from its description, as controls for the tests.

The lab describes A as: when the waiting queue is not empty, put the running list aside, let the
parent schedule, put it back; and SJF as: sort the waiting queue by prompt length, then let the
parent schedule. ``Printed`` classes have the signature of that text; the others also take the
argument that vLLM 0.32 passes, so that the faults behind the first one can be seen.
"""

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler


class HandoutPrefillFirst(Scheduler):
    """Strategy A by hiding ``running``."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if not self.waiting:
            return super().schedule(*args, **kwargs)
        aside, self.running = self.running, []
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.running = aside + self.running


class HandoutSJF(Scheduler):
    """Strategy B1 by sorting the queue in every step."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        shortest_first = sorted(self.waiting, key=lambda request: request.num_prompt_tokens)
        self.waiting.clear()
        self.waiting.extend(shortest_first)
        return super().schedule(*args, **kwargs)


class PrintedPrefillFirst(HandoutPrefillFirst):
    """Strategy A with the printed signature, which takes no argument."""

    def schedule(self) -> SchedulerOutput:
        return super().schedule()


class PrintedSJF(HandoutSJF):
    """Strategy B1 with the printed signature, which takes no argument."""

    def schedule(self) -> SchedulerOutput:
        return super().schedule()
