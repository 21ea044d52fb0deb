"""One arm of a comparison: start the server, run the bench against it, keep everything.

    python -m lab3.run RUN_DIR --task task3 --arm sjf --label SJF --repeats 1 2 3 \\
        --timeout-s 10 --run-timeout-s 180 --start-timeout-s 180 --position 4/4 \\
        --serve vllm serve MODEL --scheduler-cls my_scheduler.SJFScheduler ... \\
        --bench vllm bench serve --model MODEL ... --save-result --save-detailed

Makes RUN_DIR/sjf-r1, -r2, -r3 (see lab3/run_folder.py), all on one server: with prefix caching off
a repeat finds nothing of the one before it, and a start costs as much as a run. With prefix
caching on each repeat gets a fresh server. Finished runs are skipped.

Exit code: 0 all runs are good (or refused by vLLM, with --allow-refusal), 1 some run of this arm
failed (go on with the next arm), 2 nothing can be run like this (stop). --dry-run prints the
commands instead.
"""

import argparse
import asyncio
import fcntl
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab3.commands import BenchCommand, ServeCommand


@dataclass(frozen=True)
class Job:
    """What one call is asked to do. Times in seconds; ``timeout_s`` is that of one request."""

    run_dir: Path
    task: str
    arm: str
    label: str
    name: str
    repeats: tuple[int, ...]
    serve: ServeCommand
    bench: BenchCommand
    timeout_s: float
    run_timeout_s: float
    start_timeout_s: float
    stall_timeout_s: float
    position: tuple[int, int]
    allow_refusal: bool = False

    def folder(self, repeat: int) -> Path:
        """Folder of one repeat."""
        return self.run_dir / f"{self.name}-r{repeat}"

    @property
    def server_log(self) -> Path:
        """Log of the server that runs now; each run gets a copy."""
        return self.run_dir / "servers" / f"{self.name}.log"


def parse(argv: Sequence[str]) -> tuple[Job, argparse.Namespace]:
    """Raises ValueError with one clear line for command lines that make no sense."""
    words = list(argv)
    options, serve_words, bench_words = _split(words)
    args = _parser().parse_args(options)
    if not serve_words or not bench_words:
        raise ValueError("give the server's command after --serve, then the bench's after --bench")
    done, _, total = args.position.partition("/")
    job = Job(
        run_dir=args.run_dir.resolve(),
        task=args.task,
        arm=args.arm,
        label=args.label or args.arm,
        name=args.name or args.arm,
        repeats=tuple(args.repeats),
        serve=ServeCommand.read(serve_words),
        bench=BenchCommand.read(bench_words),
        timeout_s=args.timeout_s,
        run_timeout_s=args.run_timeout_s,
        start_timeout_s=args.start_timeout_s,
        stall_timeout_s=args.stall_timeout_s,
        position=(int(done), int(total)),
        allow_refusal=args.allow_refusal,
    )
    return job, args


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    serve = words.index("--serve") if "--serve" in words else len(words)
    rest = words[serve + 1 :]
    bench = rest.index("--bench") if "--bench" in rest else len(rest)
    return words[:serve], rest[:bench], rest[bench + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab3.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s RUN_DIR [options] --serve COMMAND... --bench COMMAND...",
    )
    parser.add_argument("run_dir", type=Path, help="folder of this comparison")
    parser.add_argument("--task", required=True, help="task1, task2 or task3")
    parser.add_argument("--arm", required=True, help="short name of what is compared")
    parser.add_argument("--label", help="its name in tables and figures (default: the arm)")
    parser.add_argument("--name", help="name of its folders without -rN (default: the arm)")
    parser.add_argument("--repeats", type=int, nargs="+", default=[1], help="their numbers")
    parser.add_argument("--timeout-s", type=float, required=True, help="of one request; counted")
    parser.add_argument("--run-timeout-s", type=float, required=True, help="of one bench; kills it")
    parser.add_argument(
        "--start-timeout-s", type=float, default=600.0, help="of the server's start"
    )
    parser.add_argument(
        "--stall-timeout-s",
        type=float,
        default=60.0,
        help="a server that holds requests and makes no token for so long is given up",
    )
    parser.add_argument(
        "--allow-refusal",
        action="store_true",
        help="scheduler options that vLLM refuses are recorded as refused and are no failure",
    )
    parser.add_argument("--position", default="1/1", help="which of how many calls, for the ETA")
    parser.add_argument("--parent-pid", type=int, help="end when this shell ends ($$)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    return parser


def print_commands(job: Job) -> None:
    """The two commands as they can be typed by hand, one line each."""
    first, *others = job.repeats
    print(shlex.join(job.serve.words))
    print(shlex.join(job.bench.saving_to(job.folder(first), "bench.json")))
    if others:
        print(f"# the bench again for {', '.join(job.folder(n).name for n in others)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code as described above; dies by the signal when it is interrupted."""
    try:
        job, args = parse(sys.argv[1:] if argv is None else argv)
        if args.dry_run:
            # Into `head`, which closes the pipe: end as other programs do, without a traceback.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            print_commands(job)
            return 0
        return _run(job, args.parent_pid)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(job: Job, parent_pid: int | None) -> int:
    # Imported here: --dry-run and --help need nothing but Python.
    from lab3 import processes
    from lab3.measure import measure_arm
    from lab3.server import PortTakenError

    if parent_pid is not None:
        processes.follow_parent(parent_pid)
    processes.adopt_orphans()
    received: list[int] = []

    async def until_signal() -> bool:
        task = asyncio.current_task()

        def stop(signum: int) -> None:
            received.append(signum)
            task.cancel()

        processes.on_termination(asyncio.get_running_loop(), stop)
        return await measure_arm(job)

    job.run_dir.mkdir(parents=True, exist_ok=True)
    with (job.run_dir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0 if asyncio.run(until_signal()) else 1
        except BlockingIOError:
            print(f"error: another run writes to {job.run_dir}: wait for it", file=sys.stderr)
            return 2
        except PortTakenError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except asyncio.CancelledError:
            print("interrupted: everything that was started is stopped", file=sys.stderr)
    processes.die_by(received[0])
    return 128 + received[0]


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    os.umask(0o022)
    sys.exit(main())
