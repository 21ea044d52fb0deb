#!/usr/bin/env bash
# Task 2: the token budget of a step, max_num_batched_tokens (X), swept over several values.
#
#   bash task2.sh                        everything: set-up, runs, table, figures A1 and A2
#   DRY_RUN=1 bash task2.sh              print the commands, run nothing
#   TASK2_BUDGETS="512 2048" bash task2.sh           other values of X
#   TASK2_REQUEST_RATE=inf TASK2_NUM_PROMPTS=100     more or less load
#   TTFT_SLO_MS=200 ITL_SLO_MS=30        goals of a service: which X serves it best
#   SCHEDULER_CLS=my_scheduler.PassthroughScheduler  another scheduler than vLLM's own; those of
#                                        my_scheduler.py add what the engine itself saw
#   SCHEDULER_SETTINGS='{"aging_tokens_per_s": 50}'  its settings
#   SERVE_ARGS="--watermark 0.02" BENCH_ARGS="--burstiness 0.5"    more options for vLLM
#
# Raw files go to runs/task2-PROFILE/ARM-xX-rREPEAT/, table and figures to runs/task2-PROFILE/
# (RUN_DIR= and OUT= choose other folders). Started again it makes only what is missing. A value of
# X that vLLM refuses is passed over and stands in the table with vLLM's reason.

# shellcheck disable=SC2153 # names in capitals come from the profile
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
source scripts/rate.sh
TASK2_REQUEST_RATE="$(resolve_rate "$TASK2_REQUEST_RATE")"

SCHEDULER_CLS="${SCHEDULER_CLS:-}"
arm="${SCHEDULER_CLS##*.}"
suffix="${arm:+-$arm}"
RUN_DIR="$(realpath -m "${RUN_DIR:-runs/task2-$PROFILE$suffix}")"
OUT="${OUT:-$RUN_DIR}"
read -ra budgets <<<"$TASK2_BUDGETS"
read -ra device_args <<<"$DEVICE_ARGS"
read -ra serve_args <<<"$SERVE_ARGS"
read -ra bench_args <<<"${BENCH_ARGS:-}"
((${#budgets[@]})) || die "TASK2_BUDGETS is empty: give it some values, like \"512 2048\""

# The repeats of one X share a server; see task3.sh. ROUNDS=$TASK2_REPEATS takes turns instead.
ROUNDS="${ROUNDS:-1}"
repeats_a_round=$(((TASK2_REPEATS + ROUNDS - 1) / ROUNDS))

measure() { # X CALL REPEAT...: one server, one bench a repeat
    local x="$1" call="$2"
    local name="${arm:-default}-x$x"

    local scheduler=()
    if [[ -n "$SCHEDULER_CLS" ]]; then
        local settings="${SCHEDULER_SETTINGS:-}"
        settings="${settings#\{}" settings="${settings%\}}"
        local record="\"record\": \"$RUN_DIR/servers/$name.steps.jsonl\""
        scheduler=(--scheduler-cls "$SCHEDULER_CLS"
            --additional-config "{\"lab3\": {$record${settings:+, $settings}}}")
    fi

    local serve=(vllm serve "$MODEL" --host 127.0.0.1 --port "$PORT"
        --dtype "$DTYPE" --max-model-len "$MAX_MODEL_LEN"
        --max-num-batched-tokens "$x" --max-num-seqs "$MAX_NUM_SEQS"
        --no-enable-prefix-caching
        "${device_args[@]}" "${scheduler[@]}" "${serve_args[@]}")

    local bench=(vllm bench serve --model "$MODEL" --host 127.0.0.1 --port "$PORT"
        --dataset-name random --random-input-len "$INPUT_LEN" --random-output-len "$OUTPUT_LEN"
        --random-range-ratio "$RANGE_RATIO" --num-prompts "$TASK2_NUM_PROMPTS"
        --request-rate "$TASK2_REQUEST_RATE" --seed "$SEED" --num-warmups "$NUM_WARMUPS"
        --temperature 0 --percentile-metrics "ttft,tpot,itl,e2el" --metric-percentiles "50,90,99"
        --save-result --save-detailed --disable-tqdm "${bench_args[@]}")

    local dry_run=()
    [[ "${DRY_RUN:-0}" != 1 ]] || dry_run=(--dry-run)

    python -m lab3.run "$RUN_DIR" --task task2 --arm "${arm:-default}" \
        --label "${arm:-Default} X=$x" --name "$name" "${dry_run[@]}" --allow-refusal \
        --repeats "${@:3}" --position "$call/$((ROUNDS * ${#budgets[@]}))" --parent-pid $$ \
        --timeout-s "$TIMEOUT_S" --run-timeout-s "$RUN_TIMEOUT_S" \
        --start-timeout-s "$START_TIMEOUT_S" --stall-timeout-s "${STALL_TIMEOUT_S:-60}" \
        --serve "${serve[@]}" --bench "${bench[@]}"
}

failed=0
call=0
for ((first = 1; first <= TASK2_REPEATS; first += repeats_a_round)); do
    last=$((first + repeats_a_round - 1))
    mapfile -t repeats < <(seq "$first" $((last < TASK2_REPEATS ? last : TASK2_REPEATS)))
    for x in "${budgets[@]}"; do
        code=0
        measure "$x" $((++call)) "${repeats[@]}" || code=$?
        # 1: this X failed and is marked as failed, the others go on. Anything else ends it all.
        ((code <= 1)) || exit "$code"
        ((failed |= code)) || true
    done
done
[[ "${DRY_RUN:-0}" != 1 ]] || exit 0

python -m lab3.table "$RUN_DIR" --out "$OUT" --task task2 --repeats "$TASK2_REPEATS" || failed=1
python -m lab3.figures "$RUN_DIR" --out "$OUT" --task task2 || failed=1
exit "$failed"
