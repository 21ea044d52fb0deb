"""Failures that others reported of custom schedulers, on every class of ours.

"Seen in" is an issue or pull request of the project on GitHub.

==== =============== ======================================== =================================
case seen in         failure                                  test_...
==== =============== ======================================== =================================
1    vllm-gaudi 1555 schedule() called with an argument       schedule_takes_vllms_arguments
2    vllm 43724      wrong base under async scheduling        one_class_serves_both_bases
3    vllm 16479      class name that can't be loaded          bad_class_names_say_what_is_wrong
4    vllm 39734      a request that can never fit             request_that_never_fits
6    vllm 23347      scheduled > running at a preemption      victim_before_the_current_request
7    vllm 53130      seats overrun                            seats_hold_while_requests_arrive
8    vllm 45388      KV pool full while decodes are held back full_pool_goes_on_decoding
9    vllm 18681      prompt above the token budget starves    long_prompt_gets_its_chunks
10   vllm 25538      preempt, readmit, preempt                no_preemption_thrash
11   vllm 28827      preempted with tokens in flight          tokens_in_flight_at_preemption
12   vllm 27756      running request left out for some steps  gap_resends_the_tokens
14   vllm 41951      priority queue is no deque               priority_policy_works
15   vllm 29366      shortest-first starves the long one      aging_bounds_the_wait, ties
17   vllm 34125      pause while requests wait                pause_drains_and_resumes
18   vllm 15422      adapter limit at the head of the queue   adapter_limit
19   vllm 53130      requests that hold KV while they wait    block_holder_is_admitted_first
20   vllm 28558      speculative decoding                     drafts_are_decodes
23   vllm 13300      bad predictions                          bad_predictions_are_harmless
36   vllm 10235      long-prompt threshold counts the running threshold_counts_skipped_requests
==== =============== ======================================== =================================
"""

import inspect

import pytest
from fuzz import ODD_PREDICTIONS, Policy
from fuzz_policies import POLICIES
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState

from lab3.check import CheckError, scheduler_class
from lab3.driver import Driver, Stalled
from lab3.engine import create_requests, create_scheduler, token_at
from lab3.invariants import Invariants, bounded_overtaking

OURS = [policy for policy in POLICIES if policy.cls]
every_policy = pytest.mark.parametrize("policy", OURS, ids=lambda policy: policy.name)
both_depths = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def make_driver(ours, /, **knobs):
    scheduler = create_scheduler(ours.cls, settings=ours.settings, **knobs)
    return Driver(scheduler, observers=[Invariants(pure=ours.pure)])


def named(name):
    return next(policy for policy in OURS if policy.name == name)


def assert_all_served(driver, num_requests, num_tokens):
    """Every request got all its tokens, and nothing is left behind."""
    driver.observers[0].finish(driver)
    assert driver.tokens == {
        str(i): [token_at(str(i), position) for position in range(num_tokens)]
        for i in range(num_requests)
    }


@every_policy
def test_schedule_takes_vllms_arguments(policy):
    scheduler = create_scheduler(policy.cls, settings=policy.settings)
    inspect.signature(type(scheduler).schedule).bind(scheduler, False)
    assert scheduler.schedule(False).total_num_scheduled_tokens == 0
    assert scheduler.schedule(throttle_prefills=True).total_num_scheduled_tokens == 0


@every_policy
def test_one_class_serves_both_bases(policy):
    """Placeholders for tokens in flight exist under async scheduling and only there."""
    placeholders = {}
    for async_scheduling in (False, True):
        driver = make_driver(policy, async_scheduling=async_scheduling)
        driver.add(*(requests := create_requests(1)))
        driver.step()
        placeholders[async_scheduling] = requests[0].num_output_placeholders
        assert isinstance(driver.scheduler, AsyncScheduler)
        driver.run()
    assert placeholders == {False: 0, True: 1}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my_scheduler", "not a dotted name"),
        ("my_scheduler:SJFScheduler", "did you mean 'my_scheduler.SJFScheduler'"),
        ("my_scheduler.SJFTypo", "has no class 'SJFTypo'"),
        ("nowhere.SJF", "no module 'nowhere'"),
    ],
)
def test_bad_class_names_say_what_is_wrong(name, says):
    """vLLM finds out after the model is loaded, and says "not enough values to unpack"."""
    with pytest.raises(CheckError, match=says) as error:
        scheduler_class(name)
    assert "\n" not in str(error.value)


@every_policy
def test_request_that_never_fits(policy):
    """200 tokens into 8 blocks of 16: the engine must not spin, whoever is at the head."""
    driver = make_driver(policy, num_blocks=9, max_model_len=4096)
    driver.observers.clear()
    driver.add(*create_requests(4, prompt_tokens=[200, 20, 20, 20], output_tokens=3))

    with pytest.raises(Stalled, match="request 0"):
        driver.run()
    if policy.name.startswith(("sjf", "dla-srpt")):
        assert set(driver.finished) == {"1", "2", "3"}


def test_victim_before_the_current_request():
    """The first of ``running`` has by far the most to come: it is the one that must give way."""
    for vllm_policy in ("fcfs", "priority"):
        driver = make_driver(named("dla-victim-only"), num_blocks=16, policy=vllm_policy)
        first, *_ = requests = create_requests(
            6,
            prompt_tokens=16,
            output_tokens=40,
            extra_args=[{"predicted_length": 40 if i == 0 else 30} for i in range(6)],
        )
        driver.add(*requests)
        driver.run()
        assert_all_served(driver, 6, 40)
        assert (first.num_preemptions > 0) == (vllm_policy == "fcfs")


@every_policy
@both_depths
def test_seats_hold_while_requests_arrive(policy, async_scheduling):
    driver = make_driver(policy, max_num_seqs=4, async_scheduling=async_scheduling)
    driver.add(*create_requests(4, output_tokens=10))
    for _ in range(3):
        driver.step()
    driver.add(*create_requests(4, output_tokens=10, first_id=4))
    driver.run()
    assert_all_served(driver, 8, 10)


@every_policy
@both_depths
def test_full_pool_goes_on_decoding(policy, async_scheduling):
    """Four decodes hold 18 of 20 blocks, the waiting prompt needs 6."""
    driver = make_driver(
        policy, num_blocks=21, block_size=4, max_num_seqs=8, async_scheduling=async_scheduling
    )
    driver.add(*create_requests(4, prompt_tokens=15, output_tokens=8))
    driver.step()
    driver.step()
    driver.add(*create_requests(1, prompt_tokens=24, output_tokens=8, first_id=4))
    driver.run()
    assert_all_served(driver, 5, 8)


@every_policy
def test_long_prompt_gets_its_chunks(policy):
    """200 tokens at a budget of 64 beside a new prompt of 10 in every step."""
    driver = make_driver(policy, max_num_seqs=64, max_num_batched_tokens=64)
    driver.add(*create_requests(1, prompt_tokens=200, output_tokens=2))
    for step in range(150):
        driver.now_s += 0.05
        driver.add(
            *create_requests(
                1, prompt_tokens=10, output_tokens=1, first_id=1 + step, arrival_s=driver.now_s
            )
        )
        driver.step()
        if driver.tokens["0"]:
            break
    assert driver.tokens["0"]
    driver.run()
    assert len(driver.finished) == len(driver.tokens)


@every_policy
@both_depths
def test_no_preemption_thrash(policy, async_scheduling):
    """Three sequences of 104 tokens into 16 blocks of 16 fit only two at a time."""
    driver = make_driver(policy, num_blocks=17, async_scheduling=async_scheduling)
    requests = create_requests(
        3, prompt_tokens=64, output_tokens=40, extra_args={"predicted_length": 40}
    )
    driver.add(*requests)
    assert driver.run(max_steps=300)
    assert_all_served(driver, 3, 40)
    assert sum(r.num_preemptions for r in requests) <= 2


@every_policy
@pytest.mark.parametrize("runner_v2", [False, True])
def test_tokens_in_flight_at_preemption(policy, runner_v2):
    """Preempted between two schedules: the token on its way arrives once and in its place."""
    driver = make_driver(policy, async_scheduling=True, runner_v2=runner_v2)
    driver.add(*create_requests(3, output_tokens=20))
    for number in range(8):
        driver.step()
        if number == 4:
            victim = driver.scheduler.running.pop()
            driver.scheduler._preempt_request(victim, 0.0)
            assert victim.num_stale_output_tokens == 1
        if number == 6:
            driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    driver.run()
    assert_all_served(driver, 3, 20)


def test_gap_resends_the_tokens():
    """A decode that sat out a prefill step comes back with all its tokens for the runner."""
    driver = make_driver(named("prefill-first"))
    driver.add(*create_requests(1))
    driver.step()
    driver.add(*create_requests(1, first_id=1))
    assert list(driver.step().output.num_scheduled_tokens) == ["1"]

    resent = driver.step().output.scheduled_cached_reqs.all_token_ids

    assert len(resent["0"]) == 33
    assert "1" not in resent


@every_policy
@both_depths
def test_priority_policy_works(policy, async_scheduling):
    """The urgent one goes first, whatever its size; preempted ones keep their priority."""
    driver = make_driver(
        policy, policy="priority", num_blocks=17, max_num_seqs=2, async_scheduling=async_scheduling
    )
    driver.add(
        *create_requests(5, prompt_tokens=[20, 20, 60, 8, 8], output_tokens=30, priority=[1] * 5)
    )
    driver.step()
    (urgent,) = create_requests(1, prompt_tokens=90, output_tokens=30, first_id=5)
    driver.add(urgent)
    order = [id_ for step in driver.steps() for id_ in step.finished_ids]
    assert order.index("5") <= 2
    assert_all_served(driver, 6, 30)


@pytest.mark.parametrize("aging", [20, 100])
@pytest.mark.parametrize("name", ["SJFScheduler", "DLASRPTScheduler"])
def test_aging_bounds_the_wait(name, aging):
    """1,000 tokens at t=0, then a 10-token prompt every 50 ms for 100 s, one seat."""
    policy = Policy("aged", f"my_scheduler.{name}", {"aging_tokens_per_s": aging})
    driver = make_driver(policy, max_num_seqs=1)
    long_, *_ = requests = create_requests(
        2001,
        prompt_tokens=[1000] + [10] * 2000,
        output_tokens=1,
        arrival_s=[0.05 * i for i in range(2001)],
    )
    admitted = []
    driver.add(requests[1], long_)
    for request in requests[2:]:
        driver.add(request)
        step = driver.step()
        admitted += [new.req_id for new in step.output.scheduled_new_reqs]
        if long_.num_output_tokens:
            break
    assert long_.is_finished()
    bounded_overtaking([requests[int(id_)] for id_ in admitted], aging)
    assert requests[int(admitted[-2])].arrival_time <= 990 / aging


def test_ties():
    """Equal prompts go by arrival, however they came in."""
    driver = make_driver(named("sjf"), max_num_seqs=1)
    driver.add(*reversed(create_requests(3, output_tokens=2)))
    assert [id_ for step in driver.steps() for id_ in step.finished_ids] == ["0", "1", "2"]


@every_policy
@both_depths
def test_pause_drains_and_resumes(policy, async_scheduling):
    driver = make_driver(policy, max_num_seqs=3, async_scheduling=async_scheduling)
    driver.add(*create_requests(6, output_tokens=8))
    while len(driver.scheduler.running) < 3:
        driver.step()
    running = {r.request_id for r in driver.scheduler.running}

    driver.pause(PauseState.PAUSED_NEW)
    driver.run(max_steps=100)
    assert set(driver.finished) == running

    driver.pause(PauseState.PAUSED_ALL)
    assert [driver.step() for _ in range(5)] == [None] * 5
    driver.pause(PauseState.UNPAUSED)
    driver.run()
    assert_all_served(driver, 6, 8)


class AdaptersInBatch(Invariants):
    most = 0

    def after_schedule(self, driver, step):
        super().after_schedule(driver, step)
        batch = [driver.scheduler.requests[id_] for id_ in step.output.num_scheduled_tokens]
        adapters = {r.lora_request.lora_int_id for r in batch}
        self.most = max(self.most, len(adapters))


@every_policy
@both_depths
def test_adapter_limit(policy, async_scheduling):
    """Adapters A and B in turn, one at a time: B waits for A to end, A's others go on."""
    driver = make_driver(policy, max_loras=1, max_num_seqs=3, async_scheduling=async_scheduling)
    driver.observers[:] = [checks := AdaptersInBatch(pure=policy.pure)]
    driver.add(*create_requests(1, output_tokens=8, lora_id=1))
    driver.step()
    driver.add(*create_requests(5, output_tokens=8, lora_id=[2, 1, 2, 1, 1], first_id=1))
    driver.run()
    assert_all_served(driver, 6, 8)
    assert checks.most == 1


@every_policy
def test_block_holder_is_admitted_first(policy):
    """A request that waits with its KV blocks (remote prefill) passes all that hold none."""
    driver = make_driver(policy, max_num_seqs=1)
    driver.observers.clear()
    holder, plain = create_requests(2, prompt_tokens=[64, 8])
    scheduler = driver.scheduler
    scheduler.kv_cache_manager.allocate_slots(holder, 32)
    holder.num_computed_tokens = 32
    driver.add(plain, holder)
    assert list(scheduler.kv_holding_waiting) == [holder]

    assert driver.step().output.num_scheduled_tokens == {"0": 32}
    driver.run()
    assert set(driver.finished) == {"0", "1"}


@every_policy
@both_depths
def test_drafts_are_decodes(policy, async_scheduling):
    """1 + 3 tokens a step are still a decode; scarce KV makes them preempt as well."""
    driver = make_driver(
        policy, num_spec_tokens=3, num_blocks=18, max_num_seqs=4, async_scheduling=async_scheduling
    )
    driver.add(*create_requests(6, prompt_tokens=50, output_tokens=40))
    sizes = {
        tokens
        for step in driver.steps()
        for id_, tokens in step.output.num_scheduled_tokens.items()
        if id_ in step.output.scheduled_spec_decode_tokens
    }
    assert 4 in sizes
    assert_all_served(driver, 6, 40)


@every_policy
@both_depths
def test_bad_predictions_are_harmless(policy, async_scheduling):
    """Each odd value once, and a prediction of 8 for a request that makes 60 tokens."""
    values = [*ODD_PREDICTIONS, 8, 10**9]
    driver = make_driver(policy, num_blocks=24, async_scheduling=async_scheduling)
    driver.add(
        *create_requests(
            len(values),
            prompt_tokens=20,
            output_tokens=60,
            extra_args=[{"predicted_length": value} for value in values],
        )
    )
    driver.run()
    assert_all_served(driver, len(values), 60)


def test_threshold_counts_skipped_requests():
    """Threshold 32, five decodes and a prompt of 200: its first chunk is 32, as in vLLM."""
    for policy in (named("passthrough"), named("prefill-first"), named("decode-first-fill")):
        driver = make_driver(policy, long_prefill_token_threshold=32)
        driver.add(*create_requests(5, output_tokens=12))
        driver.step()
        driver.add(*create_requests(1, prompt_tokens=200, first_id=5))
        chunks = [s.output.num_scheduled_tokens.get("5") for s in driver.steps()]
        assert next(filter(None, chunks)) == 32, policy.name


def test_table_names_tests_that_exist():
    cells = [line.split()[3:] for line in __doc__.splitlines() if line[:1].isdigit()]
    named = [word.strip(",") for words in cells for word in words if "_" in word or word == "ties"]
    assert len(cells) == 19
    assert [name for name in named if f"test_{name}" not in globals()] == []
