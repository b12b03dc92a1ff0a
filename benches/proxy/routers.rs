//! The routers of SGLang, Shepherd and vLLM as PyPI has them: programs of Python packages around a Rust core, all with
//! nearly the same command line. They run at their defaults, which is a cache-aware policy for each; only addresses are given.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::fleet::Engine;

/// Which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Router {
    Sglang,
    Smg,
    Vllm,
}

// === impl Router ===

impl Router {
    /// The name of the package, of its program, and for the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sglang => "sglang-router",
            Self::Smg => "smg",
            Self::Vllm => "vllm-router",
        }
    }

    /// What starts it. Of what it prints only errors are shown: it says something of each request, and where that would be
    /// kept is nothing that is to be measured.
    pub(crate) fn command(self, listen: SocketAddr, metrics: SocketAddr, engines: &[Engine]) -> Command {
        let mut command = Command::new(self.name());
        if self != Self::Vllm {
            command.arg("launch");
        }
        let host = listen.ip().to_string();
        command.args(["--host", &host, "--port", &listen.port().to_string()]);
        // By default all of them have their metrics at one port, and could not run side by side.
        command.args(["--prometheus-host", &host, "--prometheus-port", &metrics.port().to_string()]);
        command.arg("--worker-urls").args(engines.iter().map(|engine| format!("http://{}", engine.address)));
        command.stdout(Stdio::null());
        command
    }

    /// The version of the package that the program is of; nothing if it is not there. The package of sglang-router has a
    /// program named smg as well, which is not that of smg.
    pub(crate) fn version(self) -> Option<String> {
        // The program may be a link into a virtual environment, whose interpreter is beside it.
        let beside = fs::canonicalize(self.program()?).ok()?.with_file_name("python3");
        let python = if beside.exists() { beside } else { "python3".into() };
        let mut command = Command::new(python);
        command.args(["-c", "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))", self.name()]);
        let output = command.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn program(self) -> Option<PathBuf> {
        let path = env::var_os("PATH")?;
        env::split_paths(&path).map(|folder| folder.join(self.name())).find(|program| program.is_file())
    }
}
