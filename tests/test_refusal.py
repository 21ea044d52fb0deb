"""Logs of vLLM 0.32 that end in a refusal, and logs that end otherwise."""

import pytest

from lab3.refusal import refusal

START = """\
(APIServer pid=1) INFO 11-29 18:35:56 [utils.py:233] non-default args: {'max_num_seqs': 64}
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/lib/vllm", line 6, in <module>
"""
BELOW_SEATS = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (64). \
[type=value_error, input_value=ArgsKwargs((), {'runner_t..., 'stream_interval': 1}), \
input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
ZERO = """\
pydantic_core._pydantic_core.ValidationError: 2 validation errors for SchedulerConfig
max_num_batched_tokens
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, \
input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/greater_than_equal
max_num_seqs
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, \
input_type=int]
"""
OTHER_CONFIG = BELOW_SEATS.replace("SchedulerConfig", "ModelConfig")
NO_MEMORY = "ValueError: To serve at least one request, 1.2 GiB KV cache is needed\n"


def test_the_reason_is_vllms_own_sentence_without_the_jargon_behind_it():
    assert refusal(START + BELOW_SEATS) == (
        "max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (64)."
    )


def test_an_error_of_one_option_keeps_the_options_name():
    assert refusal(START + ZERO) == (
        "max_num_batched_tokens: Input should be greater than or equal to 1"
    )


def test_the_prefix_of_a_server_process_is_no_part_of_the_reason():
    log = "".join(f"(EngineCore_DP0 pid=7) {line}\n" for line in BELOW_SEATS.splitlines())
    assert refusal(log) == refusal(START + BELOW_SEATS)


@pytest.mark.parametrize("end", ["", "Killed\n", OTHER_CONFIG, NO_MEMORY, START])
def test_what_would_meet_every_point_is_no_refusal(end):
    assert refusal(START + end) is None
