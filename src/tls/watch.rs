//! News of renewed files.
//!
//! By looking at them every second, not by the system's news of files: those come from folders that hold a link, and tell
//! nothing when what it leads to is replaced elsewhere, as certbot and Kubernetes do it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::files::{Stamps, stamps_now};
use super::store::Store;

/// Between two looks. Files that have changed are read when they are the same in two of them, since a certificate and its
/// key are written one after the other.
const PAUSE: Duration = Duration::from_secs(1);

/// Looks after which files that were refused are read again all the same: a certificate that is valid from now on is not
/// yet by a clock that is a little slow.
const AGAIN_LOOKS: u32 = 60;

/// Tells when files differ from those that are in force. Dropping it ends the looking.
pub(crate) struct CertificateNews(mpsc::Receiver<()>);

/// What the last looks have shown.
#[derive(Default)]
struct Looks {
    last: Stamps,
    /// What was told already, and how many looks ago: files that are no good are not read at each.
    told: Stamps,
    told_ago: u32,
}

// === impl CertificateNews ===

impl CertificateNews {
    /// Looks at the files of `store`.
    pub(crate) fn of(store: Arc<Store>) -> Self {
        let (tell, told) = mpsc::channel(1);
        tokio::spawn(look(store, tell));
        Self(told)
    }

    /// Returns when files have changed, and are at rest. Safe to cancel.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

async fn look(store: Arc<Store>, tell: mpsc::Sender<()>) {
    let mut looks = Looks::default();
    while !tell.is_closed() {
        sleep(PAUSE).await;
        let in_force = store.stamps();
        if in_force.is_empty() {
            continue;
        }
        // A file system that hangs must hold up nobody.
        let looking = tokio::task::spawn_blocking(move || (stamps_now(&in_force), in_force));
        let Ok((now, in_force)) = looking.await else { return };
        if looks.are_news(&in_force, now) && tell.send(()).await.is_err() {
            return;
        }
    }
}

// === impl Looks ===

impl Looks {
    /// Whether the files, which have the stamps `now`, are to be read in place of those `in_force`.
    fn are_news(&mut self, in_force: &Stamps, now: Stamps) -> bool {
        let is_at_rest = self.last == now;
        self.last = now;
        if self.last == *in_force {
            self.told = Stamps::new();
            return false;
        }
        if !is_at_rest {
            return false;
        }
        self.told_ago += 1;
        let was_told = self.told == self.last && self.told_ago < AGAIN_LOOKS;
        if !was_told {
            self.told.clone_from(&self.last);
            self.told_ago = 0;
        }
        !was_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(seconds: i64) -> Stamps {
        [("/certificate.pem".into(), Some((1, seconds, 0, 100)))].into()
    }

    #[test]
    fn changed_files_are_told_once_and_when_they_are_at_rest() {
        let mut looks = Looks::default();
        assert!(!looks.are_news(&stamps(1), stamps(1)));
        assert!(!looks.are_news(&stamps(1), stamps(2)), "it may be half written");
        assert!(!looks.are_news(&stamps(1), stamps(3)), "it was");
        assert!(looks.are_news(&stamps(1), stamps(3)));
        assert!(!looks.are_news(&stamps(1), stamps(3)), "told, and refused");
        assert!(!looks.are_news(&stamps(1), stamps(4)));
        assert!(looks.are_news(&stamps(1), stamps(4)), "another attempt");
        assert!(!looks.are_news(&stamps(4), stamps(4)), "it is in force");
    }

    #[test]
    fn what_was_refused_is_tried_again_after_a_while() {
        let mut looks = Looks::default();
        looks.are_news(&stamps(1), stamps(2));
        assert!(looks.are_news(&stamps(1), stamps(2)));
        let told = (0..3 * AGAIN_LOOKS).filter(|_| looks.are_news(&stamps(1), stamps(2))).count();
        assert_eq!(told, 3);
    }

    #[test]
    fn what_goes_back_to_what_was_refused_is_told_again_once_the_good_one_was_seen() {
        let mut looks = Looks::default();
        for seconds in [2, 2, 1, 2] {
            looks.are_news(&stamps(1), stamps(seconds));
        }
        assert!(looks.are_news(&stamps(1), stamps(2)));
    }
}
