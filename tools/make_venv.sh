#!/bin/sh
# Makes a virtual environment with a Python that Megatron's wheel supports, or says how to get one.
# usage: sh tools/make_venv.sh DIRECTORY [PYTHON]
set -eu

venv=$1
wanted=${2:-}
tried=

fail() {
    printf 'error: %s\n  evidence: %s\n  next: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

how_to_get_python() {
    if command -v uv >/dev/null 2>&1; then
        echo "uv python install 3.12 && make setup"
    elif command -v pyenv >/dev/null 2>&1; then
        echo "pyenv install 3.12 && make setup"
    elif command -v conda >/dev/null 2>&1; then
        echo "conda create -n python312 python=3.12 && conda activate python312 && make setup"
    elif command -v apt-get >/dev/null 2>&1; then
        echo "sudo apt-get install python3.12 python3.12-venv && make setup"
    elif command -v dnf >/dev/null 2>&1; then
        echo "sudo dnf install python3.12 && make setup"
    else
        echo "install Python 3.12 from python.org, then make setup PYTHON=/path/to/python3.12"
    fi
}

# Whether $1 starts and is new enough. A name that exists may still not start: pyenv leaves one for
# every version it has, selected or not.
new_enough() {
    version=$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) ||
        version="does not start"
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && return
    tried="$tried, $1 ($version)"
    return 1
}

# Whether $1 can also make environments: Debian packages that part separately.
usable() {
    new_enough "$1" || return 1
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    tried="$tried, $1 ($version, without the module venv or ensurepip)"
    return 1
}

# The first usable Python; 3.12 comes first because it is what the project is tested with.
find_python() {
    pyenv=${PYENV_ROOT:-$HOME/.pyenv}/versions
    for candidate in \
        python3.12 "$pyenv"/3.12*/bin/python "$(uv python find 3.12 2>/dev/null || true)" \
        python3.13 "$pyenv"/3.13*/bin/python "$(uv python find '>=3.12' 2>/dev/null || true)" \
        python3 python; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if usable "$candidate"; then
            chosen=$candidate
            return
        fi
    done
    return 1
}

if [ -x "$venv/bin/python" ]; then
    new_enough "$venv/bin/python" || fail "$venv needs a Python of at least 3.12." \
        "${tried#, }" "rm -r $venv && make setup"
    exit 0
fi

if [ -n "$wanted" ]; then
    chosen=$wanted
    usable "$chosen" || fail "$wanted cannot be used: it must be a Python of at least 3.12." \
        "${tried#, }" "$(how_to_get_python)"
else
    find_python || {
        tried=${tried:-, nothing is named python on PATH}
        fail "No Python of at least 3.12 was found; Megatron's training loop needs it." \
            "tried: ${tried#, }" "$(how_to_get_python)"
    }
fi

echo "Making $venv with $chosen (Python $version)"
"$chosen" -m venv "$venv"
