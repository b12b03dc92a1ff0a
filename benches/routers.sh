#!/bin/sh
# Installs the routers that are published for the same purpose from PyPI, and measures them beside warmgate. They run at
# their defaults, with a cache-aware policy each; only addresses are set. Proxies have half of the cores to themselves, so
# that requests a second are what they bear.
#
#     benches/routers.sh                             # requests of 2 KB and 48 KB; some five minutes
#     benches/routers.sh post-48kb/64                # what is given goes to the bench: benches/proxy/main.rs
#     benches/routers.sh --save=routers              # writes benches/results/routers-DATE.md too
#     ROUTERS=/tmp/routers PYTHON=python3.12 benches/routers.sh
#
# ROUTERS is the folder that they are installed in, target/routers if it is not given; it can be deleted at any time.
set -eu
cd "$(dirname "$0")/.."

# What they are compared at, and the one place that says it.
packages='sglang-router==0.3.2 smg==1.13.0 vllm-router==0.1.17'

python=${PYTHON:-python3}
folder=${ROUTERS:-${CARGO_TARGET_DIR:-target}/routers}

say() { printf '%s\n' "$*" >&2; }

require_venv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    say "$python with its venv module is missing. Install it and try again, or name another one with PYTHON:"
    say '    Debian, Ubuntu     sudo apt-get install python3-venv'
    say '    Fedora, RHEL       sudo dnf install python3'
    say '    Arch               sudo pacman -S python'
    exit 1
}

# is_there ENVIRONMENT NAME VERSION
is_there() {
    [ -x "$1/bin/$2" ] &&
        "$1/bin/python3" -c 'import importlib.metadata as m, sys; sys.exit(m.version(sys.argv[1]) != sys.argv[2])' \
            "$2" "$3" 2>/dev/null
}

# install NAME VERSION: into an environment of its own. The package of sglang-router has a program named smg as well.
install() {
    environment=$folder/$1
    if ! is_there "$environment" "$1" "$2"; then
        say "installing $1 $2"
        "$python" -m venv --clear "$environment"
        if ! "$environment/bin/python3" -m pip install --quiet --disable-pip-version-check "$1==$2"; then
            say "$1 $2 cannot be installed. pip has said why above. If PyPI cannot be reached from here, set PIP_INDEX_URL"
            say 'to a mirror of it or HTTPS_PROXY to a proxy; if there is no package for this machine, PYTHON to a Python of'
            say 'a version that there is one for.'
            exit 1
        fi
    fi
    ln -sf "$environment/bin/$1" "$folder/bin/$1"
}

require_venv
mkdir -p "$folder/bin"
folder=$(cd "$folder" && pwd)
for package in $packages; do
    install "${package%%==*}" "${package##*==}"
done

filters=''
for arg; do
    case $arg in
    -*) ;;
    *) filters=given ;;
    esac
done
[ -n "$filters" ] || set -- post-2kb post-48kb "$@"

sh scripts/setup.sh
say 'building and measuring'
PATH=$folder/bin:$PATH cargo bench --locked --bench proxy -- \
    --apart --proxies=warmgate,nginx,sglang-router,smg,vllm-router "$@"
