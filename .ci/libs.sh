#!/usr/bin/env bash
# Trains with other RL libraries, each in a venv that inherits .venv: some pin what others pin
# otherwise. `bash .ci/libs.sh [NAME ...]`; without names, those of CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirement() {
    case $1 in
        skrl) echo "skrl==2.1.0" ;;
        sb3) echo "stable-baselines3==2.9.2" ;;
        torchrl) echo "torchrl==0.14.1" ;;  # wants a tensordict older than rsl_rl's
        rl_games) echo "rl-games==1.6.5" ;;
        tianshou) echo "tianshou==2.0.1" ;;  # wants an older filelock, and so does its virtualenv
        unilab_rl) echo "unilab-rl==1.4.15" ;;
        *) echo "unknown library: $1" >&2; return 1 ;;
    esac
}

(($#)) || set -- skrl sb3 torchrl
inherit=$(.venv/bin/python -c "import site; print(site.getsitepackages()[0])")
for name in "$@"; do
    wanted=$(requirement "$name")
    folder=.venv-libs/$name
    if [[ ! -e $folder/.done || $(cat "$folder/.done") != "$wanted" ]]; then
        .venv/bin/python -m venv --clear "$folder"
        echo "import site; site.addsitedir('$inherit')" \
            >"$("$folder/bin/python" -c "import site; print(site.getsitepackages()[0])")/base.pth"
        grep -v "^tensordict\|^filelock" constraints.txt >"$folder/constraints.txt"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
            -c "$folder/constraints.txt" "$wanted"
        echo "$wanted" >"$folder/.done"
    fi
    echo "== $wanted"
    OMP_NUM_THREADS=1 "$folder/bin/python" -m pytest -q -p no:cacheprovider -o filterwarnings= \
        -o pythonpath="tests tests/libs" --durations=3 "tests/libs/check_$name.py"
done
