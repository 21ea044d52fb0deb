"""What a policy's schedule() costs beside vLLM's own, on the same state: python -m lab3.overhead

Every policy is timed against a twin that runs vLLM's scheduler, step by step and in turn, so that
whatever disturbs the machine disturbs both. Reported is the median of the paired ratios with
their quartiles; the row "default" is vLLM against itself and shows the noise. Times are CPU times
of the thread: schedule() never waits, and other processes on the machine don't count.

States: "turnover" has 256 requests running and N waiting, and in every step two of the running
end and two of the waiting get their seats; "full" has no KV blocks left, so that decodes evict
one another and the evicted ask to come back.
"""

import argparse
import csv
import gc
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab3 import provenance
from lab3.text_table import Cell, Table, count, number, to_markdown, to_text

if TYPE_CHECKING:
    from lab3.driver import Driver

SEATS = 256
TURNOVER_REQUESTS = 2
PAIRS_PER_BUILD = {"turnover": 60, "full": 15}
QUEUE_GOAL, DLA_GOAL = 1.05, 1.15


@dataclass(frozen=True)
class Arm:
    """A scheduler to time. ``goal``: the ratio it should stay within."""

    name: str
    cls: str | type | None
    settings: tuple[tuple[str, Any], ...] = ()
    goal: float = QUEUE_GOAL


def _dla(name: str, cls: str = "DLAScheduler", **settings: Any) -> Arm:
    return Arm(name, f"my_scheduler.{cls}", tuple(settings.items()), DLA_GOAL)


ARMS = (
    Arm("default", None),
    Arm("passthrough", "my_scheduler.PassthroughScheduler"),
    Arm("prefill-first", "my_scheduler.StepExclusivePrefillFirstScheduler"),
    Arm("sjf", "my_scheduler.SJFScheduler"),
    Arm("decode-first", "my_scheduler.PureDecodeFirstScheduler", (("fill", True),)),
    Arm("fair-share", "my_scheduler.FairShareScheduler"),
    Arm("adaptive", "my_scheduler.AdaptiveChunkScheduler"),
    _dla("dla"),
    _dla("dla-victim-only", admission="off"),
    _dla("dla-future-peak", admission="future_peak"),
    _dla("dla-srpt", "DLASRPTScheduler"),
)


@dataclass(frozen=True)
class Row:
    """One arm in one state. Times in microseconds a call, medians; ``step`` is schedule() and
    update_from_output() together; ratios are arm / vLLM of the same step."""

    arm: str
    state: str
    waiting: int
    pairs: int
    default_us: float
    arm_us: float
    ratio: float
    ratio_q25: float
    ratio_q75: float
    step_ratio: float
    goal: float
    running: float
    default_running: float

    @property
    def met(self) -> bool:
        return self.ratio <= self.goal


class Timed:
    """A driver whose scheduler's schedule() and update_from_output() are timed, in seconds."""

    def __init__(self, driver: "Driver") -> None:
        self.driver = driver
        self.schedule_s = self.update_s = 0.0
        scheduler = driver.scheduler
        scheduler.schedule = self._timed(scheduler.schedule, "schedule_s")
        scheduler.update_from_output = self._timed(scheduler.update_from_output, "update_s")

    def _timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began_s = time.thread_time()
            result = call(*args)
            setattr(self, name, time.thread_time() - began_s)
            return result

        return timed


def _requests(first_id: int, num_requests: int) -> list[Any]:
    from lab3.engine import create_requests

    rng = random.Random(first_id)
    outputs = [rng.randint(200, 600) for _ in range(num_requests)]
    return create_requests(
        num_requests,
        first_id=first_id,
        prompt_tokens=[rng.randint(32, 256) for _ in range(num_requests)],
        output_tokens=outputs,
        extra_args=[
            {"predicted_length": length, "client": str(rng.randint(0, 15))} for length in outputs
        ],
    )


def _build(arm: Arm, state: str, waiting: int) -> "Driver":
    """A driver with ``SEATS`` requests decoding and ``waiting`` in the queue."""
    from lab3.driver import Driver
    from lab3.engine import create_scheduler

    driver = Driver(
        create_scheduler(
            arm.cls,
            settings=dict(arm.settings),
            num_blocks=64 * SEATS,
            max_num_seqs=SEATS,
            max_num_batched_tokens=2048,
            max_model_len=4096,
        )
    )
    scheduler = driver.scheduler
    driver.add(*_requests(0, SEATS))
    while scheduler.waiting or any(r.is_prefill_chunk for r in scheduler.running):
        driver.step()
    pool = scheduler.kv_cache_manager.block_pool
    if state == "full":
        pool.get_new_blocks(pool.get_num_free_blocks())
    driver.add(*_requests(SEATS, waiting))
    return driver


def _turn_over(driver: "Driver", first_id: int) -> None:
    driver.abort(*[r.request_id for r in driver.scheduler.running[:TURNOVER_REQUESTS]])
    driver.add(*_requests(first_id, TURNOVER_REQUESTS))


def _pairs(arm: Arm, state: str, waiting: int, num_pairs: int) -> Iterator[tuple[Timed, Timed]]:
    """Steps (vLLM's, the arm's) on twin states, until ``num_pairs`` were made."""
    done = 0
    while done < num_pairs:
        twins = [Timed(_build(a, state, waiting)) for a in (ARMS[0], arm)]
        gc.collect()
        gc.disable()
        try:
            for number in range(min(PAIRS_PER_BUILD[state], num_pairs - done)):
                # Who goes second finds warmer caches: take turns.
                for twin in twins if number % 2 else reversed(twins):
                    if state == "turnover":
                        _turn_over(twin.driver, SEATS + waiting + TURNOVER_REQUESTS * number)
                    twin.driver.step()
                yield twins[0], twins[1]
                done += 1
        finally:
            gc.enable()


def measure(arm: Arm, state: str, waiting: int, num_pairs: int) -> Row:
    """Time ``arm`` against vLLM's scheduler in ``state`` with ``waiting`` requests queued."""
    samples = [
        (
            base.schedule_s,
            ours.schedule_s,
            (ours.schedule_s + ours.update_s) / (base.schedule_s + base.update_s),
            len(base.driver.scheduler.running),
            len(ours.driver.scheduler.running),
        )
        for base, ours in _pairs(arm, state, waiting, num_pairs)
    ]
    base_s, ours_s, step_ratios, base_running, ours_running = zip(*samples, strict=True)
    ratios = [ours / base for base, ours in zip(base_s, ours_s, strict=True)]
    q25, median, q75 = statistics.quantiles(ratios, n=4)
    return Row(
        arm=arm.name,
        state=state,
        waiting=waiting,
        pairs=len(samples),
        default_us=1e6 * statistics.median(base_s),
        arm_us=1e6 * statistics.median(ours_s),
        ratio=median,
        ratio_q25=q25,
        ratio_q75=q75,
        step_ratio=statistics.median(step_ratios),
        goal=arm.goal,
        running=statistics.fmean(ours_running),
        default_running=statistics.fmean(base_running),
    )


def table(rows: Sequence[Row]) -> Table:
    """The rows for people; a ratio above its goal is marked."""
    return Table(
        "schedule() of each policy beside vLLM's own",
        (
            ("policy", ""),
            ("state", ""),
            ("waiting", ""),
            ("vLLM", "us"),
            ("policy", "us"),
            ("ratio", "median"),
            ("goal", ""),
            ("whole step", "ratio"),
            ("running", "mean"),
        ),
        tuple(
            (
                Cell(row.arm),
                Cell(row.state),
                Cell(count(row.waiting)),
                Cell(number(row.default_us)),
                Cell(number(row.arm_us)),
                Cell(f"{row.ratio:.3f}", f"{row.ratio_q25:.3f}..{row.ratio_q75:.3f}"),
                Cell(f"{row.goal:.2f}" if row.met else f"above {row.goal:.2f}"),
                Cell(f"{row.step_ratio:.3f}"),
                Cell(number(row.running)),
            )
            for row in rows
        ),
    )


def growth(rows: Sequence[Row]) -> list[str]:
    """How much more a call costs with the longest queue than with the shortest, per arm."""
    lines = []
    for arm, group in itertools.groupby(rows, key=lambda row: (row.arm, row.state)):
        first, *_, last = sorted(group, key=lambda row: row.waiting) * 2
        if first.waiting < last.waiting:
            lines.append(
                f"{arm[0]} ({arm[1]}): {first.waiting:,} -> {last.waiting:,} waiting makes a call "
                f"{last.arm_us / first.arm_us:.2f}x as long, "
                f"vLLM's {last.default_us / first.default_us:.2f}x"
            )
    return lines


def save(rows: Sequence[Row], out: Path) -> None:
    """Write overhead.csv, overhead.md and overhead.json (with versions and machine) to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    records = [asdict(row) for row in rows]
    with open(out / "overhead.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    about = {"versions": provenance.versions(), "hardware": provenance.hardware()}
    (out / "overhead.json").write_text(json.dumps(about | {"rows": records}, indent=1) + "\n")
    machine = about["hardware"]
    notes = [
        f"Measured; {machine['cpu']}, {machine['cores']} cores; CPU time of the thread, medians "
        f"and quartiles of {min(row.pairs for row in rows)} pairs or more.",
        *growth(rows),
    ]
    text = to_markdown(table(rows)) + "\n\n" + "\n".join(f"- {note}" for note in notes)
    (out / "overhead.md").write_text(text + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab3.overhead", description=__doc__.splitlines()[0]
    )
    names = [arm.name for arm in ARMS]
    parser.add_argument("--policies", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--waiting", nargs="+", type=int, default=[2000, 8000], metavar="N")
    parser.add_argument("--states", nargs="+", choices=list(PAIRS_PER_BUILD), default=None)
    parser.add_argument("--pairs", type=int, default=240, help="timed steps a row (240)")
    parser.add_argument("--out", type=Path, default=Path("results/overhead"))
    args = parser.parse_args(argv)
    if args.pairs < 2 or min(args.waiting) < 0:
        parser.error("--pairs must be 2 or more and --waiting 0 or more")
    rows = []
    for arm in (arm for arm in ARMS if arm.name in args.policies):
        for state in args.states or PAIRS_PER_BUILD:
            for waiting in args.waiting:
                print(f"timing {arm.name}, {state}, {waiting} waiting", file=sys.stderr, flush=True)
                rows.append(measure(arm, state, waiting, args.pairs))
    print(to_text(table(rows)))
    print("\n".join(growth(rows)))
    save(rows, args.out)
    print(f"saved to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
