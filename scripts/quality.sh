#!/bin/sh
# Prints how every policy does on every built-in workload, at several utilizations, in Markdown: the tables of
# docs/routing.md. With TRACE=FILE, a block trace as well. WARMGATE names the program, SEEDS how many seeds are averaged.
set -eu

program=${WARMGATE:-${CARGO_TARGET_DIR:-target}/release/warmgate}
seeds=${SEEDS:-3}
policies=cost,locality_first,prefix_affinity,consistent_hash,least_request,power_of_two,round_robin,random,pooled

# compare TITLE OPTIONS: the table of `simulate` with these options. A utilization out of reach is told in its place.
compare() {
    printf '## %s\n\n' "$1"
    shift
    if printed=$("$program" simulate --policies "$policies" "$@" 2>&1); then
        printf '%s\n' "$printed" | awk '
            NR == 1 { print $0 ".\n"; next }
            NF == 0 { next }
            !heads && $1 != "policy" { next }
            $1 == "policy" {
                heads = 1
                print "| policy | hits % | prefill tokens | TTFT p50 | p90 | p99 | mean | e2e mean | skew tokens | requests | good % |"
                print "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
                next
            }
            NF >= 11 { line = "|"; for (i = 1; i <= 11; i++) line = line " " $i " |"; print line }'
    else
        printf '%s\n' "$printed"
    fi
    echo
}

compare shared-prefix --workload shared-prefix
for workload in conversation agentic rag no-sharing burst; do
    for utilization in 0.3 0.5 0.7 0.9; do
        compare "$workload at $utilization" --workload "$workload" --utilization "$utilization" --seeds "$seeds"
    done
done
if [ -n "${TRACE:-}" ]; then
    for utilization in 0.3 0.5 0.7 0.9; do
        compare "$(basename "$TRACE") at $utilization" --trace "$TRACE" --utilization "$utilization" --seeds "$seeds"
    done
fi
