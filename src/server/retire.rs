//! How a [`Server`] ends that another process has taken over from.

use std::io;
use std::sync::Arc;

use pingora_core::apps::ServerApp;
use tokio::time::timeout;

use super::upgrade::Estate;
use super::{CLOSING_TIME, Server};

impl Server {
    /// What another process needs to take over.
    ///
    /// # Errors
    /// When there is no descriptor left to copy the listeners' to.
    pub(super) fn estate(&self) -> io::Result<Estate> {
        let sockets: io::Result<_> = self.duplicates.iter().map(|duplicate| duplicate.socket.try_clone()).collect();
        let listeners = self.duplicates.iter().map(|duplicate| duplicate.listening).collect();
        Ok(Estate { listeners, sockets: sockets?, state: Arc::clone(&self.state) })
    }

    /// Leaves the listeners to another process: when this returns, none is open here.
    pub(super) async fn let_go(&mut self) {
        self.state.lifecycle.drain();
        self.duplicates.clear();
        self.stop_accepting.send_replace(true);
        self.stop_admin.send_replace(true);
        while self.listeners.join_next().await.is_some() {}
    }

    /// Finishes after [`Server::let_go`]: answers what still comes on kept connections with `Connection: close`. Returns when
    /// no connection is left, at most `upgrade.drain_timeout` later; the requests that were cut.
    ///
    /// Unlike [`Server::stop`] it leaves kept connections that wait for their next request their `keepalive_timeout`, as
    /// long as nobody waits for the end of this process, which `hurry` tells: a request that meets a closing connection is
    /// lost.
    pub(super) async fn retire(self, hurry: impl Future<Output = ()>) -> usize {
        let config = self.state.config.load_full();
        let lifecycle = &self.state.lifecycle;
        let over = async {
            let left = async {
                lifecycle.idle().await;
                // The last request may leave its connection to wait, as others have before. Who then says nothing for so
                // long is no client that would be missed.
                let kept_for = config.server.keepalive_timeout + CLOSING_TIME;
                let _ = timeout(kept_for, lifecycle.closed()).await;
            };
            tokio::select! {
                () = left => {}
                () = hurry => {}
            }
            for app in &self.apps {
                app.cleanup().await;
            }
            lifecycle.idle().await;
            let _ = timeout(CLOSING_TIME, lifecycle.closed()).await;
        };
        let _ = timeout(config.server.upgrade.drain_timeout, over).await;
        self.state.flush_logs();
        self.state.lifecycle.requests()
    }
}
