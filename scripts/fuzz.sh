#!/bin/sh
# Runs each fuzz target, or the ones named, for SECONDS_EACH; what it learns stays in fuzz/corpus, of which only what
# reaches something of its own is kept. The flags are those of cargo-fuzz without a sanitizer, so that nothing has to be
# installed and no nightly compiler is needed: the program has no unsafe code of its own. Where both are at hand,
# `cargo +nightly fuzz run NAME` works as well.
set -eu
cd "$(dirname "$0")/../fuzz"

host=$(rustc -vV | sed -n 's/^host: //p')
passes="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
passes="$passes -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
passes="$passes -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS="--cfg fuzzing $passes" cargo build --release --locked --target "$host"

programs="${CARGO_TARGET_DIR:-target}/$host/release"
[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"/\1/p' Cargo.toml | tail -n +2)
for name; do
    mkdir -p "corpus/$name" "artifacts/$name"
    echo "fuzzing $name for ${SECONDS_EACH:-600} s"
    "$programs/$name" "corpus/$name" "seeds/$name" -max_total_time="${SECONDS_EACH:-600}" -max_len=16384 \
        -timeout=20 -rss_limit_mb=2048 -artifact_prefix="artifacts/$name/" -print_final_stats=1
    rm -rf "corpus/$name.small"
    mkdir "corpus/$name.small"
    "$programs/$name" -merge=1 -max_len=16384 "corpus/$name.small" "corpus/$name" "seeds/$name"
    rm -rf "corpus/$name"
    mv "corpus/$name.small" "corpus/$name"
done
