#!/usr/bin/env bash
# What is to be known of one GPU, in ten minutes: tests of the step, then every line of the benchmark.
#
#   tests/gpu/ten_minutes.sh [OUT] [LINE...]      # results in OUT/gpu.txt, by default ./gpu.txt; LINE as below
#
# Each line has a time limit, appends its output, and never stops the next. Environment: PYTHON (python3), SETTINGS
# (options of the benchmark for every line, such as "--set device=cpu --set model=small-cnn --rows 400" to rehearse on a
# CPU), IMAGES (CIFAR-10: a folder with cifar-10-binary.tar.gz or with train/CLASS/ and test/CLASS/; else random images),
# AIRBENCH (github.com/KellerJordan/cifar10-airbench, legacy/airbench94.py).
set -u
cd "$(dirname "$0")/../.."
out=${1:-.}/gpu.txt
shift $(($# > 0))
python=${PYTHON:-python3}
rows=${ROWS:-1000000}
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
read -r -a settings <<<"${SETTINGS:-}"
images=(${IMAGES:+--data "$IMAGES"})

run() { # run NAME SECONDS COMMAND...
    local name=$1 limit=$2 begun=$SECONDS
    shift 2
    { [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $name "* ]]; } || return 0
    echo "== $name: $*" >>"$out"
    timeout "$limit" "$@" 2>&1 | grep -v '^::progress' >>"$out"
    echo "== $name: exit ${PIPESTATUS[0]}, $((SECONDS - begun)) s" | tee -a "$out"
}

bench() { # bench NAME SECONDS [OPTION...]
    local name=$1 limit=$2
    shift 2
    run "$name" "$limit" "$python" -m benchmarks.gpu --only "$name" "$@" "${settings[@]}"
}

only=("$@")
run machine 20 bash -c 'nvidia-smi -q -d CLOCK,POWER | head -40; which gcc cc nvcc; '"$python"' -c "import torch; print(torch.__version__)"'
run tests 90 "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_step.py -k "logits or frozen or graph"
bench steps 90
bench vit 75
bench resnet18 45
bench checkpoints 40
bench prediction 90 --predict "$rows"
bench streaming 30
bench jpegs 60
bench airbench 40 "${images[@]}"
bench published 60 "${images[@]}" ${AIRBENCH:+--published "$AIRBENCH"}
