#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/ecosystem/run.sh - tests with the packages of pins.txt: all of tests/python, and tests/ecosystem on spillway as pip installs it
#
#   tests/ecosystem/run.sh BUILD [NAME...]      called by `make test-ecosystem`; NAME: only files whose path contains one of these
#   tests/ecosystem/run.sh --newest BUILD [NAME...]     by `make test-newest`: with what the index has today; writes BUILD/newest.md
#   tests/ecosystem/run.sh --program NAME BUILD         by `make test-programs`: test_NAME.py alone, with the packages of NAME.txt
set -euo pipefail

cd "$(dirname "$0")/../.."
packages=()
where= # below BUILD
if [ "$1" = --newest ]; then
    packages=(--newest)
    where=newest
    shift
elif [ "$1" = --program ]; then
    packages=(--pins "tests/ecosystem/$2.txt")
    where=programs/$2
    set -- "$3" "ecosystem/test_$2.py"
fi
build=$1
environment=$build${where:+/$where}
status=0
reason=$(mktemp)
trap 'rm -f "$reason"' EXIT
mkdir -p "$environment"
# In a pipe, which ends when tee has: a process substitution is not waited for, and its file may lack the last line.
python=$({ tests/venv.sh "${packages[@]}" "$environment" 2>&1 >&3 | tee "$reason" >&2; } 3>&1) || status=$?
if [ $status -eq 77 ]; then
    echo "  skip          ecosystem: $(tail -n 1 "$reason")"
    echo
    echo "0 passed, 0 failed, 1 skipped"
    exit
fi
[ $status -eq 0 ]
# The index's builds of these are for PyTorch with CUDA's libraries: without them they cannot be loaded, and text needs neither.
if [[ $where == programs/* ]] && ! "$python" -c 'import torchvision, torchaudio' 2>/dev/null; then
    "$python" -m pip uninstall --disable-pip-version-check -q -y torchvision torchaudio 2>/dev/null
fi
echo "  PIP   spillway into $environment/venv"
"$python" -m pip install --disable-pip-version-check -q --no-deps --force-reinstall .
# DeepSpeed compiles what it needs when it is first used, for minutes: before a test waits for it.
compile_deepspeed() {
    local folder swap
    echo "  CXX   what DeepSpeed needs"
    folder=$(cd "$environment/venv" && pwd)
    swap=$(mktemp -d -p "$build") # which takes O_DIRECT, as a temporary folder may not
    PATH=$folder/bin:$PATH DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$folder/torch_extensions "$python" \
        python/examples/deepspeed_zero3.py --layers 1 --sequence 32 --batch 2 --steps 1 --swap "$swap" >"$reason" 2>&1 ||
        status=$?
    rm -rf "$swap"
    [ $status -eq 0 ] || cat "$reason" >&2
    return $status
}

# wants_deepspeed NAME...: one of its files is among those named.
wants_deepspeed() {
    local name
    [ $# -gt 0 ] || return 0
    for name; do
        [[ " tests/ecosystem/test_deepspeed.py tests/ecosystem/test_examples.py tests/ecosystem/test_pipeline.py " != *"$name"* ]] || return 0
    done
    return 1
}

! wants_deepspeed "${@:2}" || compile_deepspeed
kinds=(--kind python --kind ecosystem)
[[ ${packages[*]} != --pins* ]] || kinds=(--kind ecosystem)
if [ "$where" != newest ]; then
    PYTHON=$python tests/run --build "$build" "${kinds[@]}" "${@:2}"
    exit
fi
SPW_NEWEST=1 PYTHON=$python tests/run --build "$build" "${kinds[@]}" "${@:2}" | tee "$reason" || status=$?
"$python" tests/ecosystem/newest.py "$reason" >"$build/newest.md"
cat "$build/newest.md"
exit $status
