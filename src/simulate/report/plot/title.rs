//! The title: what was run, and how.

use plotters::element::Text;
use plotters::style::{BLACK, FontStyle, IntoFont, TextStyle};

use super::{Area, PlotError, palette};

/// Pixels above the first line, left of all lines, and below the last.
const MARGIN: i32 = super::MARGIN as i32;

/// Characters of a line of each size that the width holds.
const LARGE_CHARS: usize = 88;
const SMALL_CHARS: usize = 150;

/// Lines shown at most: a title is no document.
const MAX_LINES: usize = 12;

/// A title, wrapped.
pub(super) struct Title {
    lines: Vec<Line>,
}

struct Line {
    text: String,
    is_large: bool,
}

// === impl Title ===

impl Title {
    pub(super) fn new(title: &str) -> Self {
        let mut lines = Vec::new();
        for (number, text) in title.lines().enumerate() {
            let is_large = number == 0;
            let wrapped = wrap(text, if is_large { LARGE_CHARS } else { SMALL_CHARS });
            lines.extend(wrapped.into_iter().map(|text| Line { text, is_large }));
        }
        lines.truncate(MAX_LINES);
        Self { lines }
    }

    /// Pixels from top to bottom.
    pub(super) fn height(&self) -> u32 {
        (self.lines.iter().map(Line::height).sum::<i32>() + MARGIN).unsigned_abs()
    }

    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let mut top = MARGIN;
        for line in &self.lines {
            area.draw(&Text::new(line.text.as_str(), (MARGIN, top), line.style()))?;
            top += line.height();
        }
        Ok(())
    }
}

// === impl Line ===

impl Line {
    fn height(&self) -> i32 {
        if self.is_large { 26 } else { 18 }
    }

    fn style(&self) -> TextStyle<'static> {
        if self.is_large {
            ("sans-serif", 20).into_font().style(FontStyle::Bold).color(&BLACK)
        } else {
            ("sans-serif", 13).into_font().color(&palette::FAINT)
        }
    }
}

/// Lines of at most `chars` characters, broken between words; a longer word has a line of its own.
fn wrap(text: &str, chars: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(|char: char| char.is_whitespace() || char.is_control()).filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= chars => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("one two three four", 9), ["one two", "three", "four"]);
        assert_eq!(wrap("unbreakable is long", 7), ["unbreakable", "is long"]);
        assert!(wrap("  ", 9).is_empty());
        assert_eq!(wrap("a\0\tb", 9), ["a b"], "XML has no control characters");
    }

    #[test]
    fn the_first_line_is_large_and_a_title_is_bounded() {
        let title = Title::new("a\nb\nc");
        assert_eq!(title.lines.iter().map(|line| line.is_large).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(Title::new(&"word ".repeat(10_000)).lines.len(), MAX_LINES);
    }
}
