# shellcheck shell=bash
# Sourced by task2.sh and task3.sh: a request rate that fits the machine.

resolve_rate() { # prints RATE, or for auto:SHARE that share of the capacity measured here, in req/s
    if [[ "$1" != auto:* ]]; then
        echo "$1"
        return
    fi
    if [[ "${DRY_RUN:-0}" == 1 ]]; then
        echo "# --request-rate inf below stands for $1: a share of what this machine serves" >&2
        echo inf
        return
    fi
    # Task 3's default arm with all requests at once; finished once, it is not run again.
    local folder="runs/capacity-$PROFILE"
    LAB3_SKIP_SETUP=1 LAB3_PARENT_PID=$$ RUN_DIR="$folder" OUT="$folder" ARMS=default REPEATS=1 \
        ROUNDS=1 NUM_PROMPTS="$CAPACITY_PROMPTS" REQUEST_RATE=inf BENCH_ARGS="" \
        bash task3.sh >&2 || return
    python -m lab3.capacity "$folder/default-r1" "${1#auto:}"
}
