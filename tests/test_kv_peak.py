"""The KV peak file against a count from outside, and its life on disk."""

import pytest
from scheduling import drive

from lab3 import kv_peak
from lab3.driver import Driver, Observer, Step
from lab3.engine import StubModel, create_requests, create_scheduler
from lab3.kv_peak import read_kv_peak


class KVCount(Observer):
    """The sums that the KV peak file must hold, counted from outside."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.blocks: list[int] = []

    def after_schedule(self, driver: Driver, step: Step) -> None:
        scheduler = driver.scheduler
        manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        self.tokens.append(sum(r.num_computed_tokens for r in scheduler.running))
        held = {b.block_id for blocks in manager.req_to_blocks.values() for b in blocks}
        self.blocks.append(len(held))


@pytest.mark.parametrize("caching", [False, True])
def test_the_kv_peak_file_holds_what_running_requests_really_held(tmp_path, caching):
    path = tmp_path / "peak.json"
    driver = drive(
        "KVPeakScheduler",
        {"kv_peak_file": str(path)},
        num_blocks=30,
        max_num_seqs=8,
        enable_prefix_caching=caching,
    )
    count = KVCount()
    driver.observers.append(count)
    driver.add(*create_requests(12, output_tokens=50, shared_prefix_tokens=32))
    driver.run()
    record = read_kv_peak(path)
    assert record["tokens"] == count.tokens[: record["steps"]]
    assert record["blocks"] == count.blocks[: record["steps"]]
    assert record["peak_tokens"] == max(count.tokens)
    assert record["peak_blocks"] == max(count.blocks) <= record["pool_blocks"] == 29
    assert record["t_s"] == sorted(record["t_s"])
    assert max(record["running"]) <= 8


def test_the_kv_peak_file_is_complete_when_the_last_answer_leaves(tmp_path):
    path = tmp_path / "peak.json"
    scheduler = create_scheduler(
        "my_scheduler.KVPeakScheduler", settings={"kv_peak_file": str(path)}
    )
    assert read_kv_peak(path)["steps"] == 0
    (request,) = create_requests(1, output_tokens=1)
    scheduler.add_request(request)
    output = scheduler.schedule()
    scheduler.update_from_output(output, StubModel().execute(scheduler, output))
    assert read_kv_peak(path)["peak_tokens"] == 32


def test_a_long_record_is_thinned_but_its_peak_is_exact(tmp_path, monkeypatch):
    monkeypatch.setattr(kv_peak, "_MAX_POINTS", 50)
    path = tmp_path / "peak.json"
    file = kv_peak.KVPeakFile(str(path), 16, 100)
    for step in range(1001):
        file.add(tokens=5000 - abs(step - 501), blocks=step % 7, running=1)
    file.write()
    record = read_kv_peak(path)
    assert record["peak_tokens"] == 5000
    assert record["peak_blocks"] == 6
    assert record["steps"] == 1001
    assert 20 <= len(record["tokens"]) == len(record["t_s"]) <= 50


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        create_scheduler(
            "my_scheduler.KVPeakScheduler",
            settings={"kv_peak_file": str(tmp_path / "nowhere" / "peak.json")},
        )


def test_a_file_that_is_no_kv_peak_file_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match="no KV peak file"):
        read_kv_peak(path)
