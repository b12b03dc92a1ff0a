//! The callers in force: found by their keys, each with what it may do.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;

use super::charge::Usage;
use super::paths;
use crate::config::{Auth, Key, KeyDigest, Priority};

/// One caller: its settings, and what it has used.
#[derive(Debug)]
pub struct Caller {
    pub(super) key: Key,
    /// Shared with the caller of the same label before and after a reload.
    pub(super) usage: Arc<Usage>,
}

/// All callers. Published whole by the control loop, read by requests.
#[derive(Debug, Default)]
pub struct Callers {
    by_digest: HashMap<KeyDigest, Arc<Caller>>,
    /// In the order of the file.
    all: Vec<Arc<Caller>>,
    /// Whether there is a file of keys; else anyone may call.
    is_required: bool,
}

/// What a caller asked for and may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// This model.
    Model,
    /// Any model by not naming one.
    NoModel,
    /// The pool that the request would go to.
    Pool,
    /// The path.
    Path,
}

// === impl Callers ===

impl Callers {
    /// Those of a configuration, with nothing used yet.
    pub fn new(auth: &Auth) -> Self {
        Self::default().next(auth)
    }

    /// Those of a changed configuration. Callers that stay, by their labels, keep what they have used.
    pub fn next(&self, auth: &Auth) -> Self {
        let kept: HashMap<&str, &Arc<Usage>> = self.all.iter().map(|caller| (caller.label(), &caller.usage)).collect();
        let caller = |key: &Key| {
            let usage = kept.get(&*key.label).map_or_else(Arc::default, |usage| Arc::clone(usage));
            Arc::new(Caller { key: key.clone(), usage })
        };
        let all: Vec<Arc<Caller>> = auth.keys.iter().map(caller).collect();
        let digests =
            all.iter().flat_map(|caller| caller.key.digests.iter().map(|digest| (*digest, Arc::clone(caller))));
        Self { by_digest: digests.collect(), is_required: auth.keys_file.is_some(), all }
    }

    /// Whether callers need a key.
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Whose key this is.
    ///
    /// The search is by the digest of what was presented. How long it takes may depend on that digest and on the stored
    /// ones, but nobody can steer it: the table's hash is keyed at random, and to come near a stored digest one has to
    /// know a key for it. What is found is compared once more, in constant time.
    pub fn find(&self, presented: &[u8]) -> Option<&Arc<Caller>> {
        let digest = KeyDigest::of(presented);
        let (held, caller) = self.by_digest.get_key_value(&digest)?;
        held.matches(&digest).then_some(caller)
    }

    /// The caller of this label.
    pub fn named(&self, label: &str) -> Option<&Arc<Caller>> {
        self.all.iter().find(|caller| caller.label() == label)
    }

    /// All of them, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Caller>> {
        self.all.iter()
    }
}

// === impl Caller ===

impl Caller {
    /// What it is called in logs and metrics.
    pub fn label(&self) -> &str {
        &self.key.label
    }

    /// The same, shared.
    pub fn shared_label(&self) -> Arc<str> {
        Arc::clone(&self.key.label)
    }

    /// The class of its requests where they wait.
    pub fn priority(&self) -> Priority {
        self.key.priority
    }

    /// Its requests that have begun and not ended.
    pub fn in_flight(&self) -> u32 {
        self.usage.in_flight()
    }

    /// Whether it may not use all that there is.
    pub fn is_limited(&self) -> bool {
        self.key.models.is_some() || self.key.pools.is_some()
    }

    /// Whether it may use some models only.
    fn is_limited_to_models(&self) -> bool {
        self.key.models.is_some()
    }

    /// Whether it may use `model`, whichever pool serves it.
    fn may_use_model(&self, model: &str) -> bool {
        self.key.models.as_ref().is_none_or(|models| models.iter().any(|allowed| allowed == model))
    }

    /// Whether its requests may go to `pool`.
    fn may_use_pool(&self, pool: &str) -> bool {
        self.key.pools.as_ref().is_none_or(|pools| pools.iter().any(|allowed| allowed == pool))
    }

    /// Whether it may call `path`, decoded, with `method`.
    ///
    /// # Errors
    /// [`Denied::Path`].
    pub fn permits_path(&self, method: &Method, path: &str) -> Result<(), Denied> {
        if paths::are_allowed(&self.key, method, path) { Ok(()) } else { Err(Denied::Path) }
    }

    /// Whether a request that names `model` and would go to `pool` is one for it. A request without a model is none for
    /// a caller of certain models: what the engine would make of it is not known here.
    ///
    /// # Errors
    /// What it may not have.
    pub fn permits(&self, model: Option<&str>, pool: &str) -> Result<(), Denied> {
        match model {
            Some(model) if !self.may_use_model(model) => Err(Denied::Model),
            None if self.is_limited_to_models() => Err(Denied::NoModel),
            _ if !self.may_use_pool(pool) => Err(if model.is_some() { Denied::Model } else { Denied::Pool }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::KeyLimits;
    use crate::time::Moment;

    fn key(label: &str, keys: &[&str]) -> Key {
        Key {
            label: label.into(),
            digests: keys.iter().map(|key| KeyDigest::of(key.as_bytes())).collect(),
            limits: KeyLimits { requests_per_minute: std::num::NonZeroU32::new(2), ..KeyLimits::default() },
            models: None,
            pools: None,
            paths: None,
            priority: Priority::Normal,
        }
    }

    /// A caller `a` of these settings, made of one without any.
    pub(in crate::auth) fn caller(set: impl FnOnce(Key) -> Key) -> Arc<Caller> {
        Arc::clone(Callers::new(&auth(vec![set(key("a", &["one"]))])).named("a").unwrap())
    }

    fn auth(keys: Vec<Key>) -> Auth {
        Auth { keys_file: Some("/keys".into()), keys: keys.into() }
    }

    #[test]
    fn a_caller_is_found_by_each_of_its_keys_and_by_no_other() {
        let callers = Callers::new(&auth(vec![key("a", &["one", "two"]), key("b", &["three"])]));
        let label = |presented: &str| callers.find(presented.as_bytes()).map(|caller| caller.label().to_owned());
        assert_eq!([label("one"), label("two"), label("three")].map(Option::unwrap), ["a", "a", "b"]);
        assert_eq!([label("four"), label(""), label("sha256:")], [None, None, None]);
    }

    #[test]
    fn without_a_file_no_key_is_needed_and_with_an_empty_one_none_is_good() {
        assert!(!Callers::new(&Auth::default()).is_required());
        let callers = Callers::new(&auth(Vec::new()));
        assert!(callers.is_required() && callers.find(b"").is_none());
    }

    #[test]
    fn what_was_used_stays_with_the_label_over_a_reload() {
        let now = Moment::ORIGIN;
        let callers = Callers::new(&auth(vec![key("a", &["one"]), key("b", &["two"])]));
        let a = Arc::clone(callers.named("a").unwrap());
        let held = a.begin(now).unwrap();
        a.begin(now).unwrap();
        let next = callers.next(&auth(vec![key("a", &["new"]), key("c", &["two"])]));
        assert_eq!(next.named("a").unwrap().in_flight(), 1, "the one that is not dropped");
        assert!(next.find(b"new").unwrap().begin(now).is_err(), "both requests of the minute were used");
        assert!(next.find(b"two").unwrap().begin(now).is_ok(), "another label has used nothing");
        assert!(next.find(b"one").is_none(), "the old key is gone");
        drop(held);
        assert_eq!(next.named("a").unwrap().in_flight(), 0, "a request that began before the reload ends after it");
    }

    #[test]
    fn permission_is_by_model_and_by_pool() {
        let caller = |models: Option<&[&str]>, pools: Option<&[&str]>| {
            let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
            caller(|key| Key { models: models.map(owned), pools: pools.map(owned), ..key })
        };
        let free = caller(None, None);
        assert_eq!((free.permits(Some("m"), "p"), free.permits(None, "p")), (Ok(()), Ok(())));
        let by_model = caller(Some(&["m"]), None);
        assert_eq!(by_model.permits(Some("m"), "p"), Ok(()));
        assert_eq!(by_model.permits(Some("n"), "p"), Err(Denied::Model));
        assert_eq!(by_model.permits(None, "p"), Err(Denied::NoModel));
        let by_pool = caller(None, Some(&["p"]));
        assert_eq!((by_pool.permits(Some("m"), "p"), by_pool.permits(None, "p")), (Ok(()), Ok(())));
        assert_eq!(by_pool.permits(Some("m"), "q"), Err(Denied::Model), "as if there were no such model");
        assert_eq!(by_pool.permits(None, "q"), Err(Denied::Pool));
    }
}
