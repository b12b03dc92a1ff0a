//! Prompts given as they are: one text or many, token ids or lists of them, and the pairs of rerank and score.
//!
//! At most [`MAX_PROMPTS`] of a batch and [`MAX_TOKEN_IDS`] ids are kept; what is beyond is counted.

use smallvec::SmallVec;

use super::json::{JsonError, Kind, RawStr, Scanner};
use super::prompt::{Header, Prompt, Segment, Segments};
use super::{MAX_PROMPTS, content};

/// Token ids kept of one request, over all its prompts: four times the longest context windows in use, 16 MiB.
const MAX_TOKEN_IDS: usize = 1 << 22;

/// The prompts of a batch.
#[derive(Default)]
pub(super) struct Batch<'a> {
    pub(super) prompts: SmallVec<[Prompt<'a>; 1]>,
    pub(super) more_prompts: u64,
    pub(super) more_bytes: u64,
    ids_kept: usize,
}

/// One side of the pairs to score: a query, or documents.
#[derive(Default)]
pub(super) struct Side<'a> {
    items: SmallVec<[Segment<'a>; 1]>,
    more_items: u64,
    more_bytes: u64,
}

/// A list of token ids.
#[derive(Default)]
struct Ids {
    kept: Vec<u32>,
    count: u64,
    /// Something in it is no token id: the engine will refuse it.
    is_broken: bool,
}

/// Reads a text, a list of texts, token ids or a list of lists of them.
pub(super) fn read<'a>(scanner: &mut Scanner<'a>) -> Result<Batch<'a>, JsonError> {
    let mut batch = Batch::default();
    match scanner.peek()? {
        Kind::String => batch.add_text(scanner.string()?),
        Kind::Array => {
            let mut ids = Ids::default();
            scanner.array(|scanner| match scanner.peek()? {
                Kind::Number => ids.add(scanner, &mut batch.ids_kept),
                _ => batch.element(scanner),
            })?;
            batch.add_ids(ids);
        }
        _ => drop(scanner.skip()?),
    }
    Ok(batch)
}

/// Reads one text or document, or a list of them.
pub(super) fn read_side<'a>(scanner: &mut Scanner<'a>) -> Result<Side<'a>, JsonError> {
    let mut side = Side::default();
    if scanner.peek()? == Kind::Array {
        scanner.array(|scanner| side.item(scanner))?;
    } else {
        side.item(scanner)?;
    }
    Ok(side)
}

/// One prompt for each pair; a side of one item is paired with all of the other.
pub(super) fn pairs<'a>(queries: &Side<'a>, documents: &Side<'a>) -> Batch<'a> {
    let pair_count = match (queries.items.len(), documents.items.len()) {
        (0, _) | (_, 0) => 0,
        (left, right) => left.max(right),
    };
    let at = |side: &Side<'a>, index: usize| side.items.get(index).or(side.items.first()).copied();
    let prompts = (0..pair_count).map(|index| {
        let mut segments = Segments::default();
        for (header, side) in [(Header::Query, queries), (Header::Document, documents)] {
            segments.push(Segment::Header(header, content::EMPTY));
            at(side, index).into_iter().for_each(|item| segments.push(item));
        }
        segments.into_prompt()
    });
    Batch {
        prompts: prompts.collect(),
        more_prompts: queries.more_items.max(documents.more_items),
        more_bytes: queries.more_bytes + documents.more_bytes,
        ids_kept: 0,
    }
}

// === impl Batch ===

impl<'a> Batch<'a> {
    /// Puts media that came beside the prompts before each of them. Token ids have no place for it: with media they are
    /// no prompt to go by, and the request is routed by load.
    pub(super) fn with_media(mut self, media: [Option<[u8; 16]>; 3]) -> Self {
        if media.iter().any(Option::is_some) {
            self.prompts.retain(|prompt| !prompt.is_tokens());
            for prompt in &mut self.prompts {
                prompt.prepend_media(media.into_iter().flatten());
            }
        }
        self
    }

    fn element(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        if self.prompts.len() >= MAX_PROMPTS {
            self.more_prompts += 1;
            self.more_bytes += scanner.skip()?.len() as u64;
            return Ok(());
        }
        match scanner.peek()? {
            Kind::String => self.add_text(scanner.string()?),
            Kind::Array => {
                let mut ids = Ids::default();
                scanner.array(|scanner| ids.add(scanner, &mut self.ids_kept))?;
                self.add_ids(ids);
            }
            _ => self.more_bytes += scanner.skip()?.len() as u64,
        }
        Ok(())
    }

    fn add_text(&mut self, text: RawStr<'a>) {
        let mut segments = Segments::default();
        segments.push(Segment::Text(text));
        self.prompts.push(segments.into_prompt());
    }

    fn add_ids(&mut self, ids: Ids) {
        if ids.count > 0 && !ids.is_broken {
            self.prompts.push(Prompt::tokens(ids.kept, ids.count));
        }
    }
}

// === impl Side ===

impl<'a> Side<'a> {
    fn item(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        if self.items.len() >= MAX_PROMPTS {
            self.more_items += 1;
            self.more_bytes += scanner.skip()?.len() as u64;
            return Ok(());
        }
        match scanner.peek()? {
            Kind::Literal => drop(scanner.skip()?),
            _ => self.items.push(content::text_or_json(scanner)?),
        }
        Ok(())
    }
}

// === impl Ids ===

impl Ids {
    /// Reads one element; `kept` counts the ids kept of the whole request.
    fn add(&mut self, scanner: &mut Scanner<'_>, kept: &mut usize) -> Result<(), JsonError> {
        if scanner.peek()? != Kind::Number {
            self.is_broken = true;
            return scanner.skip().map(drop);
        }
        self.count += 1;
        match scanner.small_integer()? {
            Some(id) if *kept < MAX_TOKEN_IDS => {
                *kept += 1;
                self.kept.push(id);
            }
            Some(_) => {}
            None => self.is_broken = true,
        }
        Ok(())
    }
}
