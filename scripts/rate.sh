# shellcheck shell=bash
# Sourced by task2.sh, task3.sh and dla.sh: a request rate that fits the machine.

resolve_rate() { # RATE SCRIPT FOLDER VALUE...: prints RATE, in req/s
    # auto:SHARE is that share of the capacity measured here: SCRIPT's default arm with all requests
    # at once, under VALUE... (KEY=WORD each); finished once, it is not run again. steady:SHARE is
    # the same without the time in which the engine fills and drains.
    local rate="$1" script="$2" folder="$3"
    local how=()
    case "$rate" in
    auto:*) ;;
    steady:*) how=(--steady) ;;
    *)
        echo "$rate"
        return
        ;;
    esac
    if [[ "${DRY_RUN:-0}" == 1 ]]; then
        echo "# --request-rate inf below stands for $rate: a share of what this machine serves" >&2
        echo inf
        return
    fi
    env LAB3_SKIP_SETUP=1 LAB3_PARENT_PID=$$ RUN_DIR="$folder" OUT="$folder" ARMS=default \
        ROUNDS=1 BENCH_ARGS="" "${@:4}" bash "$script" >&2 || return
    python -m lab3.capacity "$folder/default-r1" "${rate#*:}" "${how[@]}"
}

lab_rate() { # RATE: the same for the lab's random requests of INPUT_LEN/OUTPUT_LEN tokens
    resolve_rate "$1" task3.sh "runs/capacity-$PROFILE-${INPUT_LEN}x$OUTPUT_LEN" REPEATS=1 \
        NUM_PROMPTS="$CAPACITY_PROMPTS" REQUEST_RATE=inf
}
