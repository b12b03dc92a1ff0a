//! What each proxy takes before it has done anything, and for what is merely open: proxies that were just started, one
//! after the other.

use std::time::Duration;
use std::{fs, io};

use tokio::time::{sleep, timeout};

use crate::canned::Canned;
use crate::client::Client;
use crate::load::next_number;
use crate::options::Options;
use crate::subject::{Kind, Setting, Subject};
use crate::table::Table;
use crate::workload::Workload;

/// The name for filters.
pub(crate) const NAME: &str = "memory";

/// Until what was just closed or opened is so on both sides.
const SETTLING: Duration = Duration::from_millis(300);

/// An answer of an idle proxy takes much less.
const PATIENCE: Duration = Duration::from_secs(10);

const HEAD: [&str; 5] = ["proxy", "ready after, ms", "RSS idle, MB", "KB an idle connection", "KB a stream in flight"];

pub(crate) async fn measure(options: &Options, kinds: &[Kind], setting: &Setting) -> io::Result<Option<Table>> {
    if !options.wants(NAME) {
        return Ok(None);
    }
    eprintln!("{NAME}");
    let (extent, mut table) = (options.extent(), Table::new(&HEAD));
    let get = Workload::get();
    let stream = Workload::chats("held", 2 * 1024, 4, Canned::Held);
    for &kind in kinds.iter().filter(|kind| kind.takes(&get) && kind.takes(&stream)) {
        let subject = Subject::start(kind, setting).await?;
        let idle = resident(&subject).await?;
        let (connections, with_connections) = hold(&subject, &get, descriptors(extent.idle_connections)?).await?;
        let connection = each(with_connections, idle, connections.len());
        drop((connections, subject));
        // What connections took stays with the allocator, so streams are measured on a new process.
        let subject = Subject::start(kind, setting).await?;
        let before = resident(&subject).await?;
        let (streams, with_streams) = hold(&subject, &stream, descriptors(extent.held_streams)?).await?;
        table.add(vec![
            kind.name().to_owned(),
            format!("{:.0}", subject.ready_after.as_secs_f64() * 1e3),
            format!("{:.1}", idle as f64 / 1e6),
            format!("{connection:.1}"),
            format!("{:.1}", each(with_streams, before, streams.len())),
        ]);
    }
    Ok(Some(table))
}

/// So many connections that have had one answer, or the beginning of one, and what the proxy takes with them.
async fn hold(subject: &Subject, workload: &Workload, connections: usize) -> io::Result<(Vec<Client>, u64)> {
    let (mut held, mut request) = (Vec::with_capacity(connections), Vec::new());
    for _ in 0..connections {
        let mut client = Client::connect(subject.address).await?;
        workload.write(next_number(), false, &mut request);
        let beginning = client.begin(&request, workload.answer_bytes);
        let answer = timeout(PATIENCE, beginning).await.map_err(|_| io::Error::other("no answer begins"))??;
        if answer.status() != 200 {
            return Err(io::Error::other(format!("{}: status {}", subject.kind.name(), answer.status())));
        }
        held.push(client);
    }
    let bytes = resident(subject).await?;
    Ok((held, bytes))
}

async fn resident(subject: &Subject) -> io::Result<u64> {
    sleep(SETTLING).await;
    subject.resident_bytes()
}

fn each(with: u64, without: u64, count: usize) -> f64 {
    with.saturating_sub(without) as f64 / 1e3 / count as f64
}

/// So many connections, or as many as a process may have here; a proxy has two descriptors for each.
fn descriptors(wanted: usize) -> io::Result<usize> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let limit = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    Ok(limit.map_or(wanted, |limit| wanted.min(limit.saturating_sub(200) / 2)))
}
