#!/usr/bin/env bash
# Task 3: other schedulers against vLLM's default, under the same load.
#
#   bash task3.sh                        everything: set-up, runs, table, figures
#   DRY_RUN=1 bash task3.sh              print the commands, run nothing
#   ARMS="default sjf" bash task3.sh     some of the arms below
#   NUM_PROMPTS=50 bash task3.sh         any value of profiles/*.env
#   SERVE_ARGS="--enforce-eager" BENCH_ARGS="--burstiness 0.5"   more options for vLLM
#   SJF_SETTINGS='{"aging_tokens_per_s": 50}'    settings of one arm: <ARM>_SETTINGS
#   ROUNDS=3                             take turns: one run of each arm, then the next of each
#
# Raw files go to runs/task3-PROFILE/ARM-rREPEAT/, table and figures beside them in
# runs/task3-PROFILE/ (RUN_DIR= and OUT= choose other folders). Started again it makes only what
# is missing.

# shellcheck disable=SC2153 # names in capitals come from the profile
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
source scripts/rate.sh
source scripts/measure.sh
REQUEST_RATE="$(lab_rate "$REQUEST_RATE")"

task=task3
RUN_DIR="$(realpath -m "${RUN_DIR:-runs/task3-$PROFILE}")"
OUT="${OUT:-$RUN_DIR}"
read -ra arms <<<"${ARMS:-default passthrough prefill_first sjf}"

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

measure() { # ARM REPEAT...
    local arm="$1" label class
    describe "$arm"
    local settings="${arm^^}_SETTINGS"
    scheduler_options "$class" "$arm" "${!settings:-}"
    serve_command "$MAX_NUM_BATCHED_TOKENS"
    random_data
    bench_command "$NUM_PROMPTS" "$REQUEST_RATE"
    run_arm "${@:2}" -- --arm "$arm" --label "$label"
}

for arm in "${arms[@]}"; do describe "$arm"; done
in_rounds "$REPEATS" "${arms[@]}"
tabulate --arms "${arms[@]}" --repeats "$REPEATS"
draw
exit "$failed"
