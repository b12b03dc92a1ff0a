//! The least that a proxy on Pingora can be: its own server, and a `ProxyHttp` that names the next engine and nothing else.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

/// As many idle connections as warmgate keeps.
const UPSTREAM_POOL_SIZE: usize = 16 * 1024;

struct PassThrough {
    engines: Vec<SocketAddr>,
    next: AtomicUsize,
}

/// Serves at `listen` until the process ends.
pub(crate) fn run(listen: &str, engines: Vec<SocketAddr>, threads: usize) -> ! {
    let conf = ServerConf { threads, upstream_keepalive_pool_size: UPSTREAM_POOL_SIZE, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, PassThrough { engines, next: AtomicUsize::new(0) });
    service.add_tcp(listen);
    server.add_service(service);
    server.run_forever()
}

// === impl PassThrough ===

#[async_trait]
impl ProxyHttp for PassThrough {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    // None, as in warmgate: the default module, which compresses, would be work that nobody has asked for.
    fn init_downstream_modules(&self, _modules: &mut pingora_core::modules::http::HttpModules) {}

    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        let next = self.next.fetch_add(1, Relaxed) % self.engines.len();
        Ok(Box::new(HttpPeer::new(self.engines[next], false, String::new())))
    }
}
