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
#   ROUNDS=3                             take turns: one run of each X, then the next of each
#
# Raw files go to runs/task2-PROFILE/ARM-xX-rREPEAT/, table and figures to runs/task2-PROFILE/
# (RUN_DIR= and OUT= choose other folders). Started again it makes only what is missing. A value of
# X that vLLM refuses is passed over and stands in the table with vLLM's reason.

# shellcheck disable=SC2153 # names in capitals come from the profile
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
source scripts/rate.sh
source scripts/measure.sh
INPUT_LEN="$TASK2_INPUT_LEN" OUTPUT_LEN="$TASK2_OUTPUT_LEN"
TASK2_REQUEST_RATE="$(lab_rate "$TASK2_REQUEST_RATE")"

SCHEDULER_CLS="${SCHEDULER_CLS:-}"
arm="${SCHEDULER_CLS##*.}"
suffix="${arm:+-$arm}"
task=task2
RUN_DIR="$(realpath -m "${RUN_DIR:-runs/task2-$PROFILE$suffix}")"
OUT="${OUT:-$RUN_DIR}"
read -ra budgets <<<"$TASK2_BUDGETS"
((${#budgets[@]})) || die "TASK2_BUDGETS is empty: give it some values, like \"512 2048\""

measure() { # X REPEAT...
    local x="$1" name="${arm:-default}-x$1"
    scheduler_options "$SCHEDULER_CLS" "$name" "${SCHEDULER_SETTINGS:-}"
    serve_command "$x"
    random_data
    bench_command "$TASK2_NUM_PROMPTS" "$TASK2_REQUEST_RATE"
    run_arm "${@:2}" -- --arm "${arm:-default}" --label "${arm:-Default} X=$x" --name "$name" \
        --allow-refusal
}

in_rounds "$TASK2_REPEATS" "${budgets[@]}"
tabulate --repeats "$TASK2_REPEATS"
draw
exit "$failed"
