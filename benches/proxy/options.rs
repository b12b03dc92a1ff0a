//! The command line of the bench.

use crate::subject::Kind;

/// What is to be measured, and how much of it.
#[derive(Debug)]
pub(crate) struct Options {
    /// A tiny round that shows that everything works, as `cargo test --bench proxy` wants it.
    pub(crate) is_test: bool,
    /// Whether proxies have cores of their own.
    pub(crate) are_apart: bool,
    /// With what name the tables go to `benches/results` as well.
    pub(crate) saved_as: Option<String>,
    /// Whether the list of the functions that requests run through is to be made, and nothing measured.
    pub(crate) is_for_list: bool,
    /// Parts of names of measurements; all of them if there are none.
    filters: Vec<String>,
    /// Proxies to be measured.
    pub(crate) kinds: Vec<Kind>,
}

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) rounds: usize,
    /// Connections of the closed loop, one after the other.
    pub(crate) connections: &'static [usize],
    /// Seconds that a proxy takes for a measurement. 0: as few requests as make sense.
    pub(crate) seconds: f64,
    /// Requests of the open loop in one turn of a proxy.
    pub(crate) arrivals: usize,
    /// Turns that each proxy has in a round of the open loop.
    pub(crate) turns: usize,
    pub(crate) idle_connections: usize,
    pub(crate) held_streams: usize,
}

// === impl Options ===

impl Options {
    /// `[--test] [--apart] [--save[=NAME]] [--proxies=NAME,NAME] [FILTER...]`, or `--warm`; `--bench` comes from cargo.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let (saved_as, filters, kinds_of_all) = (None, Vec::new(), Kind::ALL.to_vec());
        let mut options =
            Self { is_test: true, are_apart: false, saved_as, is_for_list: false, filters, kinds: kinds_of_all };
        for arg in args {
            match arg.as_str() {
                "--bench" => options.is_test = false,
                "--save" => options.saved_as = Some("proxy".into()),
                "--warm" => options.is_for_list = true,
                "--apart" => options.are_apart = true,
                "--test" => {}
                _ if arg.starts_with("--save=") => options.saved_as = Some(arg["--save=".len()..].into()),
                _ if arg.starts_with("--proxies=") => options.kinds = kinds(&arg["--proxies=".len()..])?,
                _ if arg.starts_with('-') => {
                    return Err(format!(
                        "unknown: {arg}; known are --test, --warm, --apart, --save[=NAME], --proxies=NAME,NAME and filters"
                    ));
                }
                _ => options.filters.push(arg.to_lowercase()),
            }
        }
        options.is_test |= args.iter().any(|arg| arg == "--test");
        Ok(options)
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter))
    }

    pub(crate) fn extent(&self) -> Extent {
        if self.is_test {
            let connections = &[3];
            return Extent {
                rounds: 1,
                connections,
                seconds: 0.0,
                arrivals: 8,
                turns: 2,
                idle_connections: 8,
                held_streams: 4,
            };
        }
        let connections = &[1, 64];
        let (arrivals, turns) = (400, 5);
        Extent { rounds: 5, connections, seconds: 1.0, arrivals, turns, idle_connections: 2000, held_streams: 200 }
    }
}

/// Proxies by their ids. The pass-through is what the others are measured by.
fn kinds(names: &str) -> Result<Vec<Kind>, String> {
    let mut kinds = vec![Kind::PassThrough];
    for name in names.split(',') {
        let kind = Kind::ALL.into_iter().find(|kind| kind.id() == name);
        let ids = Kind::ALL.map(Kind::id).join(", ");
        kinds.push(kind.ok_or_else(|| format!("unknown proxy: {name}; known are {ids}"))?);
    }
    kinds.dedup();
    Ok(kinds)
}
