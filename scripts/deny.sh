#!/bin/sh
# Checks the dependencies against deny.toml, as far as this machine can.
set -eu

if ! cargo deny --version >/dev/null 2>&1; then
    echo 'cargo-deny is not installed, dependencies are not checked. Get it: cargo install --locked cargo-deny' >&2
    exit 0
fi
cargo deny --locked check bans licenses sources
# The advisories are fetched from the RustSec database, which a machine behind a firewall may not reach.
if cargo deny fetch db; then
    cargo deny --locked check --disable-fetch advisories
else
    echo 'The RustSec database cannot be fetched, advisories are not checked.' >&2
fi
