//! The configurations of the proxies that are measured: what makes them comparable, and otherwise their defaults.
//!
//! All have a worker for each core, keep connections to engines, log no requests, and hold no answer back.

use std::net::SocketAddr;
use std::path::Path;

use crate::fleet::Engine;

/// warmgate at its defaults: the cost policy, and locality as it follows from its own decisions.
pub(crate) fn warmgate(listen: SocketAddr, admin: SocketAddr, engines: &[Engine]) -> String {
    let backends: Vec<String> = engines.iter().map(|engine| format!("{{url: 'http://{}'}}", engine.address)).collect();
    pool(listen, admin, &backends, "")
}

/// The same with a tokenizer and the engines' KV events.
pub(crate) fn warmgate_exact(listen: SocketAddr, admin: SocketAddr, engines: &[Engine], model: &Path) -> String {
    let backend = |engine: &Engine| {
        format!("{{url: 'http://{}', kv_events: {{endpoint: 'tcp://{}'}}}}", engine.address, engine.events)
    };
    let backends: Vec<String> = engines.iter().map(backend).collect();
    let keys = format!("tokenizer: {{path: '{}'}}, kv_events: {{enabled: true}}, ", model.display());
    pool(listen, admin, &backends, &keys)
}

fn pool(listen: SocketAddr, admin: SocketAddr, backends: &[String], keys: &str) -> String {
    format!(
        "listeners: [{{address: '{listen}'}}]\nadmin: {{address: '{admin}'}}\n\
         logging: {{access_log: 'off', level: warn}}\npools:\n  - {{name: bench, {keys}backends: [{}]}}\n",
        backends.join(", ")
    )
}

/// Requests are passed on as they come, as Pingora does: nginx would write large ones to a file first.
pub(crate) fn nginx(listen: SocketAddr, engines: &[Engine], threads: usize, folder: &Path) -> String {
    let servers: String = engines.iter().map(|engine| format!("    server {};\n", engine.address)).collect();
    let folder = folder.display();
    format!(
        "daemon off;\nworker_processes {threads};\npid {folder}/nginx.pid;\nerror_log {folder}/nginx-error.log;\n\
         worker_rlimit_nofile 16384;\nevents {{ worker_connections 8192; }}\nhttp {{\n  access_log off;\n  \
         client_body_temp_path {folder}/nginx-body;\n  proxy_temp_path {folder}/nginx-proxy;\n  \
         fastcgi_temp_path {folder}/nginx-fastcgi;\n  uwsgi_temp_path {folder}/nginx-uwsgi;\n  \
         scgi_temp_path {folder}/nginx-scgi;\n  keepalive_requests 1000000000;\n  client_max_body_size 64m;\n  \
         upstream engines {{\n{servers}    keepalive 256;\n    keepalive_requests 1000000000;\n  }}\n  server {{\n    \
         listen {listen};\n    location / {{\n      proxy_pass http://engines;\n      proxy_http_version 1.1;\n      \
         proxy_set_header Connection \"\";\n      proxy_buffering off;\n      proxy_request_buffering off;\n    \
         }}\n  }}\n}}\n"
    )
}

pub(crate) fn haproxy(listen: SocketAddr, engines: &[Engine], threads: usize) -> String {
    let servers = engines.iter().enumerate().map(|(at, engine)| format!("  server engine{at} {}\n", engine.address));
    let servers: String = servers.collect();
    format!(
        "global\n  nbthread {threads}\n  maxconn 8000\ndefaults\n  mode http\n  timeout connect 5s\n  \
         timeout client 60s\n  timeout server 60s\n  option http-no-delay\n  http-reuse always\nfrontend clients\n  \
         bind {listen}\n  default_backend engines\nbackend engines\n  balance roundrobin\n{servers}"
    )
}
