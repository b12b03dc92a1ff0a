//! Questions over retrieved documents: a few documents are hot, and a prompt holds several in the order of their relevance.
//!
//! A document is found again only where everything before it is the same, so mostly as the first one: a prefix cache
//! cannot have more than a part of such a prompt.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::draw::{Arrivals, LogNormal, Zipf};
use super::script::{Names, Piece, Script};
use super::{BLOCK_TOKENS, Session, Workload};

/// Sizes of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Rag {
    /// Requests in all, a session each; 4,000 give percentiles that hold still.
    pub requests: usize,
    /// Requests that arrive each second, at speed 1; 5 of them bring 35,000 prompt tokens.
    pub requests_per_second: f64,
    /// Tokens of the instructions that all prompts begin with; a paragraph.
    pub system_tokens: u32,
    /// Documents; 500 are more than a small cache holds.
    pub documents: u32,
    /// How skewed their popularity is, as the exponent of Zipf's law; 1, as with most things that are popular.
    pub exponent: f64,
    /// Tokens of a document; a section of a manual.
    pub document_tokens: LogNormal,
    /// Documents of a prompt, all numbers alike; 3 to 6 are what retrieval usually hands over.
    pub documents_each: RangeInclusive<usize>,
    /// Tokens of the question; a sentence or two.
    pub question_tokens: LogNormal,
    /// Tokens of an answer; a few sentences.
    pub output_tokens: LogNormal,
}

// === impl Rag ===

impl Default for Rag {
    fn default() -> Self {
        Self {
            requests: 4_000,
            requests_per_second: 5.0,
            system_tokens: 300,
            documents: 500,
            exponent: 1.0,
            document_tokens: LogNormal::new(1_400.0, 0.5, 200.0, 6_000.0),
            documents_each: 3..=6,
            question_tokens: LogNormal::new(40.0, 0.6, 8.0, 200.0),
            output_tokens: LogNormal::new(200.0, 0.6, 16.0, 1_000.0),
        }
    }
}

impl Rag {
    /// The workload that `seed` stands for.
    pub fn generate(&self, seed: u64) -> Workload {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut names, mut arrivals) = (Names::default(), Arrivals::new());
        let zipf = Zipf::new(self.documents, self.exponent);
        let system = names.piece(self.system_tokens);
        let documents: Vec<_> =
            (0..self.documents.max(1)).map(|_| names.piece(self.document_tokens.tokens(&mut rng))).collect();
        let session = |_| {
            let start = arrivals.next(self.requests_per_second, &mut rng);
            let found = self.retrieve(&zipf, &mut rng).into_iter().map(|rank| documents[rank]);
            let pieces: Vec<_> = [system].into_iter().chain(found).collect();
            self.session(start, &pieces, &mut names, &mut rng)
        };
        Workload { block_tokens: BLOCK_TOKENS, sessions: (0..self.requests).map(session).collect() }
    }

    /// Ranks of different documents, in the order of relevance, which is the order they are drawn in.
    fn retrieve(&self, zipf: &Zipf, rng: &mut fastrand::Rng) -> Vec<usize> {
        let wanted = rng.usize(self.documents_each.clone()).min(self.documents.max(1) as usize);
        let mut ranks = Vec::with_capacity(wanted);
        while ranks.len() < wanted {
            let rank = zipf.draw(rng);
            if !ranks.contains(&rank) {
                ranks.push(rank);
            }
        }
        ranks
    }

    fn session(&self, start: Duration, pieces: &[Piece], names: &mut Names, rng: &mut fastrand::Rng) -> Session {
        let mut script = Script::new(BLOCK_TOKENS);
        pieces.iter().for_each(|&piece| script.say(piece));
        script.say(names.piece(self.question_tokens.tokens(rng)));
        script.ask(Duration::ZERO, names.piece(self.output_tokens.tokens(rng)));
        script.finish(start, None)
    }
}

impl fmt::Display for Rag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} a second, {} to {} of {} documents (Zipf {}) of {} tokens behind {} common ones, questions \
             of {}, answers of {}",
            self.requests,
            self.requests_per_second,
            self.documents_each.start(),
            self.documents_each.end(),
            self.documents,
            self.exponent,
            self.document_tokens,
            self.system_tokens,
            self.question_tokens,
            self.output_tokens,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn first_documents_are_shared_and_the_order_behind_them_hardly() {
        let parameters = Rag {
            requests: 300,
            system_tokens: 64,
            document_tokens: LogNormal::new(640.0, 0.0, 640.0, 640.0),
            ..Rag::default()
        };
        let workload = parameters.generate(1);
        let distinct = |at: usize| {
            workload.sessions.iter().map(|session| session.turns[0].chain[at]).collect::<HashSet<_>>().len()
        };
        let (system, first, second, third) = (distinct(0), distinct(10), distinct(20), distinct(30));
        assert_eq!(system, 1, "all prompts begin alike");
        assert!(first < 150, "{first} first documents in 300 prompts");
        assert!(second > 230 && third > second, "{second} first two, {third} first three");
    }

    #[test]
    fn a_document_is_in_a_prompt_once() {
        let (parameters, mut rng) = (Rag::default(), fastrand::Rng::with_seed(1));
        let zipf = Zipf::new(parameters.documents, parameters.exponent);
        for _ in 0..1_000 {
            let ranks = parameters.retrieve(&zipf, &mut rng);
            assert!((3..=6).contains(&ranks.len()) && ranks.iter().collect::<HashSet<_>>().len() == ranks.len());
        }
        let few = Rag { documents: 2, ..Rag::default() };
        let mut ranks = few.retrieve(&Zipf::new(2, 1.0), &mut rng);
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1], "no more than there are");
    }
}
