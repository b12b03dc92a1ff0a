#!/bin/sh
# Makes sure that the build can run; does nothing where all is there. `setup.sh lint` also wants rustfmt and clippy.
# Never asks. Pingora's compression library is built by cmake with a C compiler; nothing else is needed besides Rust.
set -eu

has() { command -v "$1" >/dev/null 2>&1; }
say() { printf '%s\n' "$*" >&2; }

if ! has cargo; then
    say 'cargo is missing. Install Rust, open a new shell and try again:'
    say "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    exit 1
fi

# Prints the missing build tools.
missing() {
    has cmake || printf 'cmake '
    has "${CC:-cc}" || printf 'C-compiler '
}

# Installs them where apt-get is the package manager; fails where that takes a password.
install_with_apt() {
    if [ "$(id -u)" = 0 ]; then as_root=''; else as_root='sudo -n'; fi
    say "Missing: $(missing)- installing cmake and build-essential."
    $as_root apt-get -q update &&
        $as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends cmake build-essential
}

if [ -n "$(missing)" ]; then
    if has apt-get; then install_with_apt || say 'That failed.'; fi
    if [ -n "$(missing)" ]; then
        say "Missing: $(missing)- please install them and try again:"
        say '    Debian, Ubuntu     sudo apt-get update && sudo apt-get install cmake build-essential'
        say '    Fedora, RHEL       sudo dnf install cmake gcc gcc-c++ make'
        say '    Arch               sudo pacman -S --needed cmake base-devel'
        say '    Alpine             sudo apk add cmake build-base'
        say '    macOS              xcode-select --install && brew install cmake'
        exit 1
    fi
fi

[ "${1:-}" = lint ] || exit 0
for component in rustfmt clippy; do
    case $component in rustfmt) tool='cargo fmt' ;; clippy) tool='cargo clippy' ;; esac
    $tool --version >/dev/null 2>&1 && continue
    if has rustup && rustup component add "$component"; then continue; fi
    say "$component is missing. With rustup: rustup component add $component; else install it from where Rust came from."
    exit 1
done
