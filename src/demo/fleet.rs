//! A proxy and its simulated engines, in this process.

use std::error::Error;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::model::Model;
use crate::config;
use crate::pool::Trust;
use crate::server::Server;
use crate::sim::{EngineOptions, KvEventOptions, SimEngine};
use crate::time;

/// The model that the engines serve.
pub(super) const MODEL: &str = "sim-model";

/// How long the fleet may take to become ready.
const READY_TIME: Duration = Duration::from_secs(20);

/// Engines and the proxy before them; dropping it ends both.
pub(super) struct Fleet {
    engines: Vec<SimEngine>,
    server: Server,
    _model: Model,
}

// === impl Fleet ===

impl Fleet {
    /// Starts `count` engines and a proxy with this policy at `listen`, and returns when all backends can serve.
    pub(super) async fn start(policy: &str, count: u16, listen: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let model = Model::write()?;
        let engines = (0..count).map(|number| start_engine(number, &model)).collect::<Result<Vec<_>, _>>()?;
        let config = config::parse(&configuration(policy, listen, &engines, &model), "demo")?;
        let fleet = Self { server: Server::start(config, None).await?, engines, _model: model };
        timeout(READY_TIME, fleet.ready()).await.map_err(|_| format!("no fleet after {READY_TIME:?}"))?;
        Ok(fleet)
    }

    /// Where the proxy listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    /// Where the proxy's admin listener is.
    pub(super) fn admin_address(&self) -> SocketAddr {
        self.server.admin_address()
    }

    /// Ends everything.
    pub(super) async fn stop(self) {
        self.server.stop().await;
        for engine in self.engines {
            engine.stop().await;
        }
    }

    async fn ready(&self) {
        let can_serve = || {
            let snapshot = self.server.state().snapshot.load();
            let mut backends = snapshot.pools().iter().flat_map(|pool| &pool.backends);
            backends.all(|backend| {
                let is_known = backend.engine.capacity_tokens.is_some() && backend.trust() == Trust::Exact;
                is_known && backend.can_serve(time::now())
            })
        };
        while !can_serve() {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn start_engine(number: u16, model: &Model) -> std::io::Result<SimEngine> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = EngineOptions {
        name: format!("engine-{number}"),
        models: vec![MODEL.to_owned()],
        seed: u64::from(number),
        tokenizer: Some(model.folder().to_owned()),
        kv_events: Some(KvEventOptions { replay: Some(any), ..KvEventOptions::at(any) }),
        ..EngineOptions::default()
    };
    SimEngine::start(options)
}

/// A configuration such as anyone would write.
fn configuration(policy: &str, listen: SocketAddr, engines: &[SimEngine], model: &Model) -> String {
    let tokenizer = model.folder().display();
    let mut text = format!(
        "listeners: [{{address: \"{listen}\"}}]\n\
         admin: {{address: \"127.0.0.1:0\"}}\n\
         server: {{drain_delay: 0s, drain_timeout: 1s}}\n\
         logging: {{access_log: off}}\n\
         pools:\n- name: demo\n  engine: vllm\n  policy: {policy}\n  health: {{interval: 500ms}}\n  \
         tokenizer: {{path: \"{tokenizer}\"}}\n  kv_events: {{enabled: true}}\n  backends:\n"
    );
    for engine in engines {
        let _ = writeln!(text, "  - {{name: {}, url: \"{}\"}}", engine.name(), engine.url());
    }
    text
}
