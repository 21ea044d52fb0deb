"""Why vLLM refuses a combination of scheduler options, read from the log of the attempt.

vLLM checks its options before it loads a model and ends with a pydantic traceback. Errors in the
scheduler's own options (a token budget below max_num_seqs, or below max_model_len without chunked
prefill) belong to one point of a sweep; errors anywhere else (model, device, memory) would meet
every point, and are failures.
"""

import re

_PROCESS = re.compile(r"^\(\w+ pid=\d+\) ", re.MULTILINE)
_REFUSAL = re.compile(
    r"ValidationErrors?: \d+ validation errors? for SchedulerConfig\n((?:.*\n?)+)", re.MULTILINE
)
_MESSAGE = re.compile(r"^  (?:Value error, |Assertion failed, )?(.*?)(?: \[type=.*)?$")


def refusal(log: str) -> str | None:
    """vLLM's own reason in one line; None when the log ends in another way."""
    tracebacks = _REFUSAL.findall(_PROCESS.sub("", log))
    if not tracebacks:
        return None
    option = ""
    for line in tracebacks[-1].splitlines():
        if found := _MESSAGE.match(line):
            return f"{option}{found.group(1)}"
        # An error of a single option stands under the option's name.
        option = f"{line.strip()}: "
    return None
