"""The Hugging Face plans on a real (tiny, random) model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lab3 import local_model
from lab3.task1 import hf_plan
from lab3.task1.batch_search import DoesNotFitError
from lab3.task1.hf_plan import HFPlan, cut_at_eos, group_rows, left_pad
from lab3.task1.job import EOS, FIXED, Job

PROMPTS = [[5, 6, 7], [8] * 40, list(range(10, 30)), [50, 51], list(range(60, 70))]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = local_model.build(
        "micro", dtype="float32", models_dir=tmp_path_factory.mktemp("models")
    )
    return Job(
        plan="hf-static",
        model=str(folder),
        dtype="float32",
        device="cpu",
        prompts=PROMPTS,
        max_new_tokens=12,
        eos_token_ids=[2],
        pad_token_id=2,
        modes=[FIXED],
        max_batch=0,
        sorted_batch=2,
    )


def outputs(job: Job, mode: str = FIXED) -> list[list[int]]:
    return HFPlan(job).run(mode)["outputs"]


def test_padding_stands_on_the_left_and_is_masked() -> None:
    ids, mask = left_pad([[7, 8, 9], [5]], pad_token_id=0)
    assert ids.tolist() == [[7, 8, 9], [0, 0, 5]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_padded_batches_write_what_single_requests_write(job: Job) -> None:
    """Pad is eos here: a mask built from the ids would hide a real eos in a prompt, too."""
    job = replace(job, prompts=[*PROMPTS, [11, 12, 2]])
    serial = outputs(replace(job, plan="hf-serial"))
    assert outputs(job) == serial
    assert outputs(replace(job, plan="hf-static-sorted")) == serial
    assert len({tuple(o) for o in serial}) == len(serial), "the model must not just repeat itself"


def test_fixed_length_means_exactly_that_many_tokens(job: Job) -> None:
    eos = outputs(job)[0][3]
    found = outputs(replace(job, eos_token_ids=[eos]))
    assert [len(o) for o in found] == [12] * len(PROMPTS)
    assert found == outputs(job), "an eos token must be neither stopped at nor suppressed"


def test_eos_ends_a_row_and_its_padding_is_not_counted(job: Job) -> None:
    full = outputs(job)
    eos = full[0][3]
    job = replace(job, eos_token_ids=[eos], pad_token_id=eos)
    found = HFPlan(job).run(EOS)
    assert found["outputs"] == [cut_at_eos(o, [eos]) for o in full]
    assert len(found["outputs"][0]) == full[0].index(eos) + 1
    assert found["batches"][0]["steps"] == max(map(len, found["outputs"]))


def test_cut_at_eos() -> None:
    assert cut_at_eos([5, 2, 2, 2], [2]) == [5, 2]
    assert cut_at_eos([5, 6], [2]) == [5, 6]
    assert cut_at_eos([5, 9, 2], [2, 9]) == [5, 9]


def test_grouping() -> None:
    lens = [30, 10, 20, 40, 5]
    assert group_rows("hf-serial", lens, 1) == [[0], [1], [2], [3], [4]]
    assert group_rows("hf-static", lens, 5) == [[0, 1, 2, 3, 4]]
    assert group_rows("hf-static-sorted", lens, 2) == [[4, 1], [2, 0], [3]]


def test_finish_times_rise_with_the_batches(job: Job) -> None:
    found = HFPlan(replace(job, plan="hf-static-sorted")).run(FIXED)
    order = [found["finish_s"][i] for batch in found["batches"] for i in batch["rows"]]
    assert order == sorted(order)
    assert found["wall_s"] == order[-1]
    assert len(set(order)) == len(found["batches"]) == 3


class SmallDevice(HFPlan):
    """A device that holds ``limit`` rows."""

    limit = 2

    def _generate(self, rows: Any, *args: Any) -> list[list[int]]:
        if len(rows) > self.limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return super()._generate(rows, *args)


def test_a_batch_that_does_not_fit_is_halved_and_the_rest_runs(job: Job) -> None:
    plan = SmallDevice(job)
    found = plan.run(FIXED)
    assert [len(b["rows"]) for b in found["batches"]] == [2, 2, 1]
    assert found["outputs"] == outputs(job)
    told = plan.describe()
    assert told["batch"] == 2
    assert told["tries"] == [[5, False], [4, False], [2, True], [3, False]]
    assert told["search_s"] > 0


def test_a_single_row_that_does_not_fit(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallDevice, "limit", 0)
    with pytest.raises(DoesNotFitError, match="does not fit"):
        SmallDevice(job).run(FIXED)


def test_max_batch_caps_the_static_batch_only(job: Job) -> None:
    capped = replace(job, max_batch=3)
    assert HFPlan(capped).describe()["batch"] == 3
    assert HFPlan(replace(capped, plan="hf-serial")).describe()["batch"] == 1


def test_the_watcher_never_stops_a_row() -> None:
    class Bar:
        moved = 0

        def update(self, by: int) -> None:
            self.moved += by

    bar = Bar()
    stop = hf_plan._StepWatcher(bar)(torch.zeros(3, 7), None)
    assert stop.tolist() == [False] * 3
    assert bar.moved == 3


def test_the_job_survives_its_file(job: Job, tmp_path: Path) -> None:
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job
    assert replace(job, plan="vllm", max_batch=9).setup() == job.setup()
    assert replace(job, max_new_tokens=13).setup() != job.setup()
