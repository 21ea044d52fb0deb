# shellcheck shell=bash
# shellcheck disable=SC2153,SC2154 # names in capitals come from the profile, task from the caller
# Sourced by task2.sh, task3.sh and dla.sh after the profile: what a measurement is made of.
#
#   task=task3 RUN_DIR=... OUT=...       what it is, where raw files go, where table and figures go
#   scheduler_options, serve_command, bench_command      set the arrays scheduler, serve, bench
#   run_arm REPEAT... -- OPTION...       one server, one bench a repeat
#   in_rounds REPEATS THING...           the caller's `measure THING REPEAT...` for everything, in
#                                        ROUNDS; sets failed
#   tabulate OPTION..., draw             table and figures from the raw files
#
# An arm's repeats share one server: a start costs more than a run here, and with prefix caching off
# a run finds nothing of the one before. If the machine drifts, ROUNDS=(number of repeats) takes
# turns instead: one run of each arm, then the next of each, every time on a fresh server.

read -ra device_args <<<"$DEVICE_ARGS"
read -ra serve_args <<<"$SERVE_ARGS"
read -ra bench_args <<<"${BENCH_ARGS:-}"
prefix_caching=--no-enable-prefix-caching
ROUNDS="${ROUNDS:-1}"
[[ "$ROUNDS" =~ ^[1-9][0-9]*$ ]] || die "ROUNDS must be a number of 1 or more, not '$ROUNDS'"
failed=0 call=0 calls=0

scheduler_options() { # CLASS NAME SETTINGS: the options of `vllm serve`, none without a class
    scheduler=()
    [[ -n "$1" ]] || return 0
    local settings="$3"
    settings="${settings#\{}" settings="${settings%\}}"
    # Every class of my_scheduler.py can record its steps; vLLM's default can't.
    local record="\"record\": \"$RUN_DIR/servers/$2.steps.jsonl\""
    scheduler=(--scheduler-cls "$1"
        --additional-config "{\"lab3\": {$record${settings:+, $settings}}}")
}

serve_command() { # MAX_NUM_BATCHED_TOKENS OPTION...
    serve=(vllm serve "$MODEL" --host 127.0.0.1 --port "$PORT"
        --dtype "$DTYPE" --max-model-len "$MAX_MODEL_LEN"
        --max-num-batched-tokens "$1" --max-num-seqs "$MAX_NUM_SEQS"
        "$prefix_caching" "${device_args[@]}" "${@:2}" "${scheduler[@]}" "${serve_args[@]}")
}

random_data() { # the lab's data set, as options of `vllm bench serve`
    dataset=(--dataset-name random --random-input-len "$INPUT_LEN"
        --random-output-len "$OUTPUT_LEN" --random-range-ratio "$RANGE_RATIO")
}

bench_command() { # NUM_PROMPTS REQUEST_RATE; the requests are those of the array dataset
    bench=(vllm bench serve --model "$MODEL" --host 127.0.0.1 --port "$PORT"
        "${dataset[@]}" --num-prompts "$1"
        --request-rate "$2" --seed "$SEED" --num-warmups "$NUM_WARMUPS"
        --temperature 0 --percentile-metrics "ttft,tpot,itl,e2el" --metric-percentiles "50,90,99"
        --save-result --save-detailed --disable-tqdm "${bench_args[@]}")
}

run_arm() { # REPEAT... -- OPTION of lab3.run...
    local repeats=()
    while [[ "$1" != -- ]]; do
        repeats+=("$1")
        shift
    done
    local dry_run=()
    [[ "${DRY_RUN:-0}" != 1 ]] || dry_run=(--dry-run)
    python -m lab3.run "$RUN_DIR" --task "$task" "${@:2}" "${dry_run[@]}" \
        --repeats "${repeats[@]}" --position "$call/$calls" \
        --parent-pid "${LAB3_PARENT_PID:-$$}" \
        --timeout-s "$TIMEOUT_S" --run-timeout-s "$RUN_TIMEOUT_S" \
        --start-timeout-s "$START_TIMEOUT_S" --stall-timeout-s "${STALL_TIMEOUT_S:-60}" \
        --serve "${serve[@]}" --bench "${bench[@]}"
}

in_rounds() { # REPEATS THING...; ends a dry run
    local all="$1" things=("${@:2}") thing first last code repeats
    local in_a_round=$(((all + ROUNDS - 1) / ROUNDS))
    calls=$((ROUNDS * ${#things[@]}))
    for ((first = 1; first <= all; first += in_a_round)); do
        last=$((first + in_a_round - 1))
        mapfile -t repeats < <(seq "$first" $((last < all ? last : all)))
        for thing in "${things[@]}"; do
            code=0
            call=$((call + 1))
            measure "$thing" "${repeats[@]}" || code=$?
            # 1: this one failed and is marked as failed, the others go on. Anything else ends it.
            ((code <= 1)) || exit "$code"
            ((failed |= code)) || true
        done
    done
    [[ "${DRY_RUN:-0}" != 1 ]] || exit 0
}

tabulate() { # OPTION of lab3.table...
    python -m lab3.table "$RUN_DIR" --out "$OUT" --task "$task" "$@" || failed=1
}

draw() {
    python -m lab3.figures "$RUN_DIR" --out "$OUT" --task "$task" || failed=1
}
