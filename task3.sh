#!/usr/bin/env bash
# Task 3: other schedulers against vLLM's default, under the same load.
#
#   bash task3.sh                        everything: set-up, runs, table, figures
#   DRY_RUN=1 bash task3.sh              print the commands, run nothing
#   ARMS="default sjf" bash task3.sh     some of the arms below
#   NUM_PROMPTS=50 bash task3.sh         any value of profiles/*.env
#   SERVE_ARGS="--enforce-eager" BENCH_ARGS="--burstiness 0.5"   more options for vLLM
#   SJF_SETTINGS='{"aging_tokens_per_s": 50}'    settings of one arm: <ARM>_SETTINGS
#
# Raw files go to runs/task3-PROFILE/ARM-rREPEAT/, table and figures beside them in
# runs/task3-PROFILE/ (RUN_DIR= and OUT= choose other folders). Started again it makes only what
# is missing.

# shellcheck disable=SC2153 # names in capitals come from the profile
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
source scripts/rate.sh
REQUEST_RATE="$(resolve_rate "$REQUEST_RATE")"

RUN_DIR="$(realpath -m "${RUN_DIR:-runs/task3-$PROFILE}")"
OUT="${OUT:-$RUN_DIR}"
read -ra arms <<<"${ARMS:-default passthrough prefill_first sjf}"
read -ra device_args <<<"$DEVICE_ARGS"
read -ra serve_args <<<"$SERVE_ARGS"
read -ra bench_args <<<"${BENCH_ARGS:-}"

# An arm's REPEATS share one server: a start costs more than a run here, and with prefix caching
# off a run finds nothing of the one before. If the machine drifts, ROUNDS=$REPEATS takes turns
# instead: one run of each arm, then the next of each, every time on a fresh server.
ROUNDS="${ROUNDS:-1}"
repeats_a_round=$(((REPEATS + ROUNDS - 1) / ROUNDS))

describe() { # sets label and class of an arm
    case "$1" in
    default) label="Default" class="" ;;
    passthrough) label="Passthrough" class=my_scheduler.PassthroughScheduler ;;
    prefill_first) label="A: prefill first" class=my_scheduler.StepExclusivePrefillFirstScheduler ;;
    sjf) label="B1: SJF" class=my_scheduler.SJFScheduler ;;
    decode_first) label="B: decode first" class=my_scheduler.PureDecodeFirstScheduler ;;
    fair_share) label="B2: fair share" class=my_scheduler.FairShareScheduler ;;
    adaptive) label="B3: adaptive chunk" class=my_scheduler.AdaptiveChunkScheduler ;;
    dla) label="DLA" class=my_scheduler.DLAScheduler ;;
    dla_srpt) label="DLA-SRPT" class=my_scheduler.DLASRPTScheduler ;;
    *) die "no arm '$1': set ARMS to some of default passthrough prefill_first sjf decode_first fair_share adaptive dla dla_srpt" ;;
    esac
}

measure() { # ARM CALL REPEAT...: one server, one bench a repeat
    local arm="$1" call="$2" label class
    describe "$arm"

    local scheduler=()
    if [[ -n "$class" ]]; then
        local settings="${arm^^}_SETTINGS"
        settings="${!settings:-}" settings="${settings#\{}" settings="${settings%\}}"
        # Every class of my_scheduler.py can record its steps; vLLM's default can't.
        local record="\"record\": \"$RUN_DIR/servers/$arm.steps.jsonl\""
        scheduler=(--scheduler-cls "$class"
            --additional-config "{\"lab3\": {$record${settings:+, $settings}}}")
    fi

    local serve=(vllm serve "$MODEL" --host 127.0.0.1 --port "$PORT"
        --dtype "$DTYPE" --max-model-len "$MAX_MODEL_LEN"
        --max-num-batched-tokens "$MAX_NUM_BATCHED_TOKENS" --max-num-seqs "$MAX_NUM_SEQS"
        --no-enable-prefix-caching
        "${device_args[@]}" "${scheduler[@]}" "${serve_args[@]}")

    local bench=(vllm bench serve --model "$MODEL" --host 127.0.0.1 --port "$PORT"
        --dataset-name random --random-input-len "$INPUT_LEN" --random-output-len "$OUTPUT_LEN"
        --random-range-ratio "$RANGE_RATIO" --num-prompts "$NUM_PROMPTS"
        --request-rate "$REQUEST_RATE" --seed "$SEED" --num-warmups "$NUM_WARMUPS"
        --temperature 0 --percentile-metrics "ttft,tpot,itl,e2el" --metric-percentiles "50,90,99"
        --save-result --save-detailed --disable-tqdm "${bench_args[@]}")

    local dry_run=()
    [[ "${DRY_RUN:-0}" != 1 ]] || dry_run=(--dry-run)

    python -m lab3.run "$RUN_DIR" --task task3 --arm "$arm" --label "$label" "${dry_run[@]}" \
        --repeats "${@:3}" --position "$call/$((ROUNDS * ${#arms[@]}))" --parent-pid "${LAB3_PARENT_PID:-$$}" \
        --timeout-s "$TIMEOUT_S" --run-timeout-s "$RUN_TIMEOUT_S" \
        --start-timeout-s "$START_TIMEOUT_S" --stall-timeout-s "${STALL_TIMEOUT_S:-60}" \
        --serve "${serve[@]}" --bench "${bench[@]}"
}

for arm in "${arms[@]}"; do describe "$arm"; done

failed=0
call=0
for ((first = 1; first <= REPEATS; first += repeats_a_round)); do
    last=$((first + repeats_a_round - 1))
    mapfile -t repeats < <(seq "$first" $((last < REPEATS ? last : REPEATS)))
    for arm in "${arms[@]}"; do
        code=0
        measure "$arm" $((++call)) "${repeats[@]}" || code=$?
        # 1: this arm failed and is marked as failed, the others go on. Anything else ends it all.
        ((code <= 1)) || exit "$code"
        ((failed |= code)) || true
    done
done
[[ "${DRY_RUN:-0}" != 1 ]] || exit 0

python -m lab3.table "$RUN_DIR" --out "$OUT" --task task3 \
    --arms "${arms[@]}" --repeats "$REPEATS" || failed=1
python -m lab3.figures "$RUN_DIR" --out "$OUT" --task task3 || failed=1
exit "$failed"
