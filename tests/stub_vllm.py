"""Plays `vllm serve` and `vllm bench serve` for tests of the runner, without a model.

    python stub_vllm.py serve --port N [--stub MODE] ...
    python stub_vllm.py bench --num-prompts N --result-dir D --result-filename F [--stub MODE] ...

The server leaves a daemon behind as the nastiest worker would: forked twice, in a session of its
own, deaf to TERM. MODE says what goes wrong; see the two functions at the end.
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def options(words: list[str]) -> dict[str, str]:
    """--name value pairs; a name without a value maps to ""."""
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            found[word[2:]] = "" if following.startswith("--") else following
    return found


def spawn_daemon() -> None:
    """A process that only kill -9 ends and that is nobody's child any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while True:
            time.sleep(0.1)


class Handler(BaseHTTPRequestHandler):
    """/health and /metrics; state is shared through class attributes."""

    mode = ""
    tokens = 0

    def do_GET(self) -> None:
        if self.mode == "silent":
            time.sleep(3600)
        if self.path == "/health":
            self.send_response(503 if self.mode == "never-ready" else 200)
            self.end_headers()
            return
        if self.path == "/stop-working":
            Handler.mode = "never-ready"
        if self.path == "/die":
            os._exit(7)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.metrics().encode())

    def metrics(self) -> str:
        busy = 3 if self.mode in ("stuck", "busy") else 0
        if self.mode != "stuck":
            Handler.tokens += 5
        return (
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="101"} 1.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            f'vllm:generation_tokens_total{{engine="0"}} {Handler.tokens}\n'
            f'vllm:num_requests_running{{engine="0"}} {busy}\n'
            'vllm:num_requests_waiting{engine="0"} 0\n'
            'vllm:num_preemptions_total{engine="0"} 0\n'
        )

    def log_message(self, *_: object) -> None:
        pass


def record_steps(path: str) -> None:
    """A step record that goes on while the server idles: every line one token."""
    if os.fork() == 0:
        with open(path, "w", buffering=1) as file:
            count = 0
            while os.getppid() != 1:
                count += 1
                step = {"t_s": time.monotonic(), "decode_tokens": 1, "number": count}
                if count == 1:
                    step["counters"] = {"seen": 1}
                print(json.dumps(step), file=file)
                time.sleep(0.01)
        os._exit(0)


def serve(given: dict[str, str]) -> None:
    """Modes: die (at start), silent, never-ready, stuck (no token while busy), wrong-class, ok."""
    mode = Handler.mode = given.get("stub", "ok")
    spawn_daemon()
    for line in range(30):
        print(f"log line {line}", flush=True)
    if mode == "die":
        sys.exit(3)
    lab3 = json.loads(given.get("additional-config", "{}")).get("lab3", {})
    if "scheduler-cls" in given:
        name = "some.OtherScheduler" if mode == "wrong-class" else given["scheduler-cls"]
        print(f"lab3 scheduler: {name} base=Scheduler async_scheduling=False settings=x")
    print("config: device_config=cpu", flush=True)
    if "record" in lab3:
        record_steps(lab3["record"])
    ThreadingHTTPServer(
        (given.get("host", "127.0.0.1"), int(given["port"])), Handler
    ).serve_forever()


def bench(given: dict[str, str]) -> None:
    """Modes: hang, exit-1, kill-server, sick-server, fail (1 request), short (answers), ok."""
    mode = given.get("stub", "ok")
    url = f"http://127.0.0.1:{given['port']}"
    count, length = int(given["num-prompts"]), int(given["random-output-len"])
    print("bench starts", {name: os.environ.get(name) for name in ("NO_PROXY", "PYTHONPATH")})
    if mode == "hang":
        time.sleep(3600)
    if mode == "exit-1":
        sys.exit("bench gives up")
    if mode in ("kill-server", "sick-server"):
        visit(url + ("/die" if mode == "kill-server" else "/stop-working"))
        if mode == "kill-server":
            time.sleep(3600)
    time.sleep(float(given.get("seconds", "0.2")))
    start_s = time.perf_counter()
    bad = {0} if mode == "fail" else set()
    result = {
        "num_prompts": count,
        "start_times": [start_s + index / 100 for index in range(count)],
        "input_lens": [8] * count,
        "output_lens": [0 if i in bad else length - (mode == "short") for i in range(count)],
        "ttfts": [0.0 if i in bad else 0.02 for i in range(count)],
        "itls": [[] if i in bad else [0.01] * (length - 1) for i in range(count)],
        "errors": ["Server disconnected" if i in bad else "" for i in range(count)],
    }
    folder = Path(given["result-dir"])
    (folder / given["result-filename"]).write_text(json.dumps(result))


def visit(url: str) -> None:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(url, timeout=10).read()
    except OSError as error:
        print(f"{url}: {error}")


if __name__ == "__main__":
    {"serve": serve, "bench": bench}[sys.argv[1]](options(sys.argv[2:]))
