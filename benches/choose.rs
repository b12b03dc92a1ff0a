//! One decision: reading the load of every backend, choosing, and accounting for the choice.
//!
//! `cargo bench --bench choose`

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use warmgate::locality::Tenant;
use warmgate::pool::{Answer, Backend, BackendSnapshot, Health, Origin, Policy, PolicyKind, Pool, PoolSnapshot};
use warmgate::prefix::Scale;
use warmgate::routing::{Query, dispatch};
use warmgate::time::Moment;

const PROMPT_TOKENS: u32 = 8_000;

fn backend(place: u32) -> BackendSnapshot {
    let origin = Origin { is_tls: false, host: "10.0.0.1".into(), port: 8_000 };
    let backend = Arc::new(Backend::new(format!("backend-{place}"), origin));
    BackendSnapshot {
        address: Some(([10, 0, 0, 1], 8_000).into()),
        health: Health::Healthy,
        ..BackendSnapshot::new(backend, Tenant { slot: place, generation: 1 })
    }
}

fn pool(backends: u32, kind: PolicyKind) -> PoolSnapshot {
    PoolSnapshot {
        policy: Policy { kind, ..Policy::default() },
        backends: (0..backends).map(backend).collect(),
        ..PoolSnapshot::new(Arc::new(Pool::new("benched", Scale::new(NonZeroU32::MIN))))
    }
}

fn decisions(c: &mut Criterion) {
    for kind in [PolicyKind::Cost, PolicyKind::LeastRequest] {
        let mut group = c.benchmark_group(format!("dispatch_{}", kind.name()));
        for backends in [4, 64, 1_000] {
            let pool = pool(backends, kind);
            // Four requests in flight at each, half of them decoding, all a while ago.
            let now = |seconds| Moment::at(Duration::from_secs(seconds));
            let mut held = Vec::new();
            for backend in &pool.backends {
                for place in 0..4 {
                    let load = backend.backend.load();
                    let mut request = load.dispatch(4_000.0, PROMPT_TOKENS, Answer::Streamed, now(100));
                    if place < 2 {
                        request.first_token(now(101));
                    }
                    held.push(request);
                }
            }
            let matched: Vec<u32> = (0..backends).map(|place| if place % 8 == 0 { 6_000 } else { 0 }).collect();
            let query = Query { prompt_tokens: PROMPT_TOKENS, ..Query::default() };
            let mut rng = fastrand::Rng::with_seed(1);
            group.bench_function(BenchmarkId::from_parameter(backends), |bencher| {
                bencher
                    .iter(|| dispatch(&pool, black_box(&query), &matched, &[], Answer::Streamed, now(102), &mut rng));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);
