#!/usr/bin/env bash
# DLA on a live server: KV cache scarce, lengths varied, a predicted output length in each request.
#
#   bash dla.sh                          everything: set-up, runs, table, simulation, figure
#   DRY_RUN=1 bash dla.sh                print the commands, run nothing
#   ARMS="default dla" bash dla.sh       some of the arms below
#   PREDICTIONS="noise:0.5 noise:1 history:0.5" bash dla.sh    see lab3/predictors.py; arms that
#                                        read no prediction are measured once
#   CACHING=on bash dla.sh               prefix caching on (vLLM's default; off here)
#   bash dla.sh --trace FILE             requests of a trace (lab3/trace.py) instead of random ones;
#                                        TRACE_TIMES=own keeps its times whatever they load
#   LIARS=0.2 bash dla.sh                that share of the requests comes from clients that claim 1
#                                        token; table and figure are of the others, and a second
#                                        table sets both against the default
#   DLA_KV_BLOCKS=120 bash dla.sh        any value of profiles/*.env
#   DLA_SETTINGS='{"victim": "least_computed"}'  settings of one arm: <ARM>_SETTINGS
#   SERVE_ARGS="--enforce-eager" BENCH_ARGS="--burstiness 0.5"   more options for vLLM
#
# The arms take turns, one run of each and then the next of each (ROUNDS=1: all runs of an arm at
# once). Raw files go to runs/dla-PROFILE/ARM-rREPEAT/, table and figures beside them (RUN_DIR= and
# OUT= choose other folders). Started again it makes only what is missing.

# shellcheck disable=SC2153,SC2034 # names in capitals come from the profile; measure.sh uses others
called_in="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
source scripts/rate.sh

TRACE="${TRACE:-}"
while (($#)); do
    [[ "$1" == --trace && -n "${2:-}" ]] || die "unknown option '$1': see the top of dla.sh"
    TRACE="$2"
    shift 2
done
[[ -z "$TRACE" || "$TRACE" == /* ]] || TRACE="$called_in/$TRACE"
[[ -z "$TRACE" || -f "$TRACE" ]] || die "no trace '$TRACE'"
CACHING="${CACHING:-off}"
[[ "$CACHING" =~ ^(on|off)$ ]] || die "CACHING must be on or off, not '$CACHING'"
LIARS="${LIARS:-0}"
[[ "$LIARS" =~ ^0(\.[0-9]+)?$ ]] || die "LIARS must be a share below 1, like 0.2, not '$LIARS'"
[[ "$LIARS" == 0 || -z "$TRACE" ]] || die "LIARS goes with random requests, not with a trace"
read -ra predictions <<<"${PREDICTIONS:-oracle}"
((${#predictions[@]})) || die "PREDICTIONS is empty: give it some, like \"oracle noise:0.5\""
for prediction in "${predictions[@]}"; do
    LAB3_PREDICTOR="$prediction" python -c "import lab3.predictor" || exit 2
done

DLA_REQUEST_RATE="$(resolve_rate "$DLA_REQUEST_RATE" dla.sh \
    "runs/capacity-dla-$PROFILE${TRACE:+-trace}" DLA_REPEATS=1 TRACE="$TRACE" TRACE_TIMES=scaled \
    DLA_NUM_PROMPTS="$DLA_CAPACITY_PROMPTS" DLA_REQUEST_RATE=inf PREDICTIONS=oracle CACHING=off LIARS=0)"
INPUT_LEN="$DLA_INPUT_LEN" OUTPUT_LEN="$DLA_OUTPUT_LEN" RANGE_RATIO="$DLA_RANGE_RATIO"
NUM_PROMPTS="$DLA_NUM_PROMPTS" REQUEST_RATE="$DLA_REQUEST_RATE" REPEATS="$DLA_REPEATS"
MAX_MODEL_LEN="$DLA_MAX_MODEL_LEN" TIMEOUT_S="$DLA_TIMEOUT_S" ROUNDS="${ROUNDS:-$DLA_REPEATS}"
source scripts/measure.sh

task=dla
variant="$([[ "$CACHING" == off ]] || echo -caching)${TRACE:+-trace}"
[[ "$LIARS" == 0 ]] || variant+=-liars
RUN_DIR="$(realpath -m "${RUN_DIR:-runs/dla-$PROFILE$variant}")"
OUT="${OUT:-$RUN_DIR}"
read -ra arms <<<"${ARMS:-default passthrough dla_victim dla future_peak dla_srpt watermark sjf}"
[[ "$CACHING" == off ]] || prefix_caching=--enable-prefix-caching

describe() { # sets label, class, settings, options and predicts (does it read predictions) of an arm
    local dla=my_scheduler.DLAScheduler
    settings="" options=() predicts=1
    case "$1" in
    default) label="Default" class="" predicts=0 ;;
    passthrough) label="Passthrough" class=my_scheduler.PassthroughScheduler predicts=0 ;;
    dla_victim) label="DLA: victim only" class="$dla" settings='{"admission": "off"}' ;;
    dla) label="DLA: victim + reserve" class="$dla" settings='{"admission": "reserve"}' ;;
    future_peak)
        label="DLA: future peak" class="$dla"
        settings='{"victim": "remaining_per_context", "admission": "future_peak"}'
        ;;
    dla_srpt) label="DLA-SRPT" class=my_scheduler.DLASRPTScheduler ;;
    watermark) label="Watermark 0.03" class="" options=(--watermark 0.03) predicts=0 ;;
    sjf) label="SJF" class=my_scheduler.SJFScheduler predicts=0 ;;
    *) die "no arm '$1': set ARMS to some of default passthrough dla_victim dla future_peak dla_srpt watermark sjf" ;;
    esac
    local own="${1^^}_SETTINGS"
    settings="${!own:-$settings}"
}

name_of() { # ARM PREDICTION: the arm's name in folders and tables
    [[ "$2" == oracle || "$predicts" == 0 ]] && echo "$1" || echo "$1-$2"
}

split_off_liars() { # sets liars, their number and rate; the honest ones keep the rest of both
    liars=()
    [[ "$LIARS" != 0 ]] || return 0
    local count rate
    read -r count rate NUM_PROMPTS REQUEST_RATE < <(
        awk -v n="$NUM_PROMPTS" -v r="$REQUEST_RATE" -v s="$LIARS" \
            'BEGIN { k = int(n * s + 0.5); print k, r * s, n - k, r * (1 - s) }'
    )
    ((count)) || die "LIARS=$LIARS of $NUM_PROMPTS requests is none"
    liars=(bash scripts/with_liars.sh "$count" "$rate")
}

choose_data() { # sets dataset, and with a trace also NUM_PROMPTS
    if [[ -z "$TRACE" ]]; then
        random_data
        return
    fi
    local file="$RUN_DIR/servers/trace.jsonl" rate="$REQUEST_RATE"
    [[ "${TRACE_TIMES:-scaled}" != own ]] || rate=own
    if [[ "${DRY_RUN:-0}" == 1 ]]; then
        echo "# $file will hold $TRACE, see lab3/trace.py" >&2
    else
        NUM_PROMPTS="$(python -m lab3.trace "$TRACE" --out "$file" --num-prompts "$NUM_PROMPTS" \
            --longest "$MAX_MODEL_LEN" --rate "$rate" --seed "$SEED")" || exit $?
    fi
    dataset=(--dataset-name timed_trace --dataset-path "$file"
        --timed-trace-chunk-hash-size "$MAX_MODEL_LEN" --timed-trace-label-timestamp arrival_s
        --timed-trace-label-input-length input_tokens
        --timed-trace-label-output-length output_tokens)
}

measure() { # ARM@PREDICTION REPEAT...
    local arm="${1%%@*}" prediction="${1#*@}" label class settings options predicts name
    describe "$arm"
    name="$(name_of "$arm" "$prediction")"
    [[ "$name" == "$arm" ]] || label+=" ($prediction)"
    [[ "$LIARS" == 0 ]] || label+=", $LIARS lie"
    local folder="${name//[:,]/-}"
    scheduler_options "$class" "$folder" "$settings"
    # The predictor stands in front of every arm, so that its cost tells none of them apart.
    serve_command "$MAX_NUM_BATCHED_TOKENS" --num-gpu-blocks-override "$DLA_KV_BLOCKS" \
        --middleware lab3.predictor.PredictLength "${options[@]}"
    serve=(env "LAB3_PREDICTOR=$prediction" "${serve[@]}")
    bench_command "$NUM_PROMPTS" "$REQUEST_RATE"
    # vLLM makes a trace's prompts from hash(), which differs from process to process otherwise.
    [[ -z "$TRACE" ]] || bench=(env PYTHONHASHSEED=0 "${bench[@]}")
    bench=("${liars[@]}" "${bench[@]}")
    run_arm "${@:2}" -- --arm "$name" --label "$label" --name "$folder"
}

split_off_liars
choose_data
things=() names=()
for arm in "${arms[@]}"; do
    describe "$arm"
    for prediction in "${predictions[@]}"; do
        things+=("$arm@$prediction")
        names+=("$(name_of "$arm" "$prediction")")
        ((predicts)) || break
    done
done

in_rounds "$REPEATS" "${things[@]}"
tabulate --arms "${names[@]}" --repeats "$REPEATS"
if [[ "$LIARS" != 0 ]]; then # dla_live simulates the first client only
    if [[ " ${names[*]} " == *" default "* ]] && ((${#names[@]} > 1)); then
        python -m experiments.liars_live "$RUN_DIR" --out "$OUT" || failed=1
    fi
elif [[ " ${names[*]} " == *" passthrough "* ]]; then
    python -m experiments.dla_live "$RUN_DIR" --out "$OUT" || failed=1
fi
draw
exit "$failed"
