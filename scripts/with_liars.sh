#!/usr/bin/env bash
# Runs a bench, and beside it a second one whose clients all claim an output of 1 token.
#   bash scripts/with_liars.sh NUM_PROMPTS REQUEST_RATE vllm bench serve OPTION...
# The second one has the same options but for its number of requests, rate and seed, and writes
# liars.json beside the first one's result. Exit status: that of the first that failed.
set -euo pipefail
liars="$1" rate="$2"
shift 2

"$@" --num-prompts "$liars" --request-rate "$rate" --seed 4242 --result-filename liars.json \
    --extra-body '{"vllm_xargs": {"predicted_length": 1}}' &
code=0
"$@" || code=$?
wait $! || code="${code/#0/$?}"
exit "$code"
