//! Tables in Markdown, aligned so that they can be read as they are.

use std::fmt;

#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

// === impl Table ===

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Columns of numbers are set to the right.
    fn is_number(&self, column: usize) -> bool {
        self.rows.iter().all(|row| row[column].starts_with(|first: char| first.is_ascii_digit() || first == '-'))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<usize> =
            (0..self.head.len()).map(|column| lines().map(|line| line[column].len()).max().unwrap_or(0)).collect();
        for (at, line) in lines().enumerate() {
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                match self.is_number(column) {
                    true => write!(f, "| {cell:>width$} ")?,
                    false => write!(f, "| {cell:width$} ")?,
                }
            }
            writeln!(f, "|")?;
            if at == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    let end = if self.is_number(column) { ':' } else { '-' };
                    write!(f, "| {}{end} ", "-".repeat(width - 1))?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}
