#!/bin/sh
# The comparison of docs/benchmarks.md with llama-server and llama-cpp-python's example server, about 30 minutes on two
# cores with SmolLM2, with nothing else running.
#
#     tools/build_llama_server.sh ~/peers && benchmarks/compare.sh ~/peers [MODEL]
set -eu

peers=$1
model=${2:-smollm2}
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/benchmarks/results/bench
bench() { # FOLDER SERVERS WORKLOAD...
    folder=$results/$1-$(basename "$model" .gguf)
    servers=$2
    shift 2
    "${PYTHON:-$root/.venv/bin/python}" -m forerun bench --compare "$servers" --peers "$peers" --model "$model" \
        --rounds "${ROUNDS:-4}" --output "$folder" "$@"
    rm -rf "$folder/logs" # paths and ports of one machine
}

# llama-server-wheel where there was no time to build the fair one.
llama=${LLAMA:-llama-server}
# `|| :`: a server that fails in one comparison must not keep the others from being made.
bench streams "$llama,llama-cpp-python,forerun" single prefill concurrent:streams=8 stall turns || :
# Several n-gram settings, of which the best counts; forerun:off is what drafts must not be slower than.
bench drafts "$llama:ngram-map-k/3/16,$llama:ngram-simple/3/16,$llama,forerun:off,forerun:auto" copy creative || :
# The Python example is left out: at libgomp's defaults it keeps next to nothing, and takes minutes for that.
bench disturbed "$llama,forerun" disturbed || :
bench prefixes "$llama,llama-cpp-python,forerun" crowd fan-out || :
