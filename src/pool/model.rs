//! A model as a backend lists it.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// Most models that one backend is believed to list: an engine and its adapters.
const MAX_MODELS: usize = 1024;

/// One entry of a backend's `/v1/models`.
#[derive(Debug)]
pub struct ModelEntry {
    /// The model's name.
    pub id: String,
    /// Whether it is an adapter (LoRA) of another model there: engines keep what it computes apart.
    pub is_adapter: bool,
    /// The whole entry, as the backend wrote it.
    pub json: Box<RawValue>,
}

#[derive(Deserialize)]
struct List {
    data: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Identified {
    id: String,
    /// vLLM names the model that an adapter belongs to.
    parent: Option<IgnoredAny>,
}

// === impl ModelEntry ===

impl ModelEntry {
    /// Entries that are one text each; what is not one is left out.
    pub(crate) fn read_entries(texts: &[String]) -> Arc<[Self]> {
        texts.iter().filter_map(|text| Self::read(RawValue::from_string(text.clone()).ok()?)).collect()
    }

    /// The entries of a list in OpenAI's form; what is not one is left out.
    pub fn read_list(body: &[u8]) -> Arc<[Self]> {
        let Ok(List { data }) = serde_json::from_slice(body) else { return Arc::default() };
        data.into_iter().take(MAX_MODELS).filter_map(Self::read).collect()
    }

    fn read(json: Box<RawValue>) -> Option<Self> {
        let Identified { id, parent } = serde_json::from_str(json.get()).ok()?;
        Some(Self { id, is_adapter: parent.is_some(), json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_as_written() {
        let body = br#"{"object":"list","data":[{"id": "a",  "max_model_len":8192},{"no":"id"},{"id":"b"}]}"#;
        let entries = ModelEntry::read_list(body);
        let ids: Vec<&str> = entries.iter().map(|entry| &*entry.id).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(entries[0].json.get(), r#"{"id": "a",  "max_model_len":8192}"#);
    }

    #[test]
    fn an_adapter_has_a_parent() {
        let body = br#"{"data":[{"id":"base","parent":null},{"id":"lora","parent":"base"},{"id":"plain"}]}"#;
        let adapters: Vec<bool> = ModelEntry::read_list(body).iter().map(|entry| entry.is_adapter).collect();
        assert_eq!(adapters, [false, true, false]);
    }

    #[test]
    fn what_is_no_list_lists_nothing() {
        for body in [&b"{}"[..], b"", b"[1]", b"<html>", br#"{"data":{}}"#] {
            assert!(ModelEntry::read_list(body).is_empty());
        }
    }
}
