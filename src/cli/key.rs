//! `warmgate key`: makes API keys, and the lines of the file of keys that know them.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Read;
use std::process::ExitCode;

use clap::Args;

use super::output::print;
use crate::auth::{MIN_KEY_BYTES, new_key};
use crate::config::KeyDigest;

/// Most bytes that are read of standard input: thousands of keys.
const MAX_INPUT_BYTES: u64 = 1 << 20;

/// What to make.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// What the caller is called in logs and metrics: 1 to 64 of the characters A-Z a-z 0-9 _ . -
    #[arg(long, default_value = "caller", value_name = "NAME", value_parser = label)]
    label: String,
    /// Hash keys that exist already, one a line of standard input, instead of making one
    #[arg(long)]
    stdin: bool,
}

/// Runs the command. A new key is printed once and kept nowhere.
pub(super) fn run(args: &KeyArgs) -> Result<ExitCode, Box<dyn Error>> {
    if args.stdin {
        let mut input = String::new();
        std::io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut input)?;
        print(hashed(&input, &args.label)?.trim_end())?;
    } else {
        let key = new_key()?;
        let line = line(&args.label, &key);
        print(format_args!("key, for the caller (it is not shown again):\n{key}\nline, for the keys_file:\n{line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A line of the file for each line of `input`. Several are numbered.
fn hashed(input: &str, label: &str) -> Result<String, String> {
    let keys: Vec<&str> = input.lines().map(str::trim).filter(|key| !key.is_empty()).collect();
    if keys.is_empty() {
        return Err("no key on standard input; expected one a line".to_owned());
    }
    let mut lines = String::new();
    for (at, key) in keys.iter().enumerate() {
        if key.len() < MIN_KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "key {}: expected at least {MIN_KEY_BYTES} visible characters without spaces, at random: shorter ones \
                 can be guessed",
                at + 1
            ));
        }
        let label = if keys.len() == 1 { label.to_owned() } else { format!("{label}-{}", at + 1) };
        let _ = writeln!(lines, "{}", line(&label, key));
    }
    Ok(lines)
}

/// The line that makes `label` the caller with `key`.
fn line(label: &str, key: &str) -> String {
    // In quotes: a label of digits would be a number otherwise.
    format!("  - {{label: '{label}', hash: '{}'}}", KeyDigest::of(key.as_bytes()))
}

fn label(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let is_good = (1..=64).contains(&text.len()) && text.chars().all(fits);
    if is_good { Ok(text.to_owned()) } else { Err("expected 1 to 64 of the characters A-Z a-z 0-9 _ . -".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_standard_input_become_lines_of_the_file() {
        let key = "k".repeat(MIN_KEY_BYTES);
        let one = hashed(&format!("\n {key} \n"), "a").unwrap();
        assert_eq!(one, format!("  - {{label: 'a', hash: '{}'}}\n", KeyDigest::of(key.as_bytes())));
        let two = hashed(&format!("{key}\n{key}x"), "7").unwrap();
        assert_eq!(two.lines().map(|line| &line[..16]).collect::<Vec<_>>(), ["  - {label: '7-1", "  - {label: '7-2"]);
    }

    #[test]
    fn what_could_be_guessed_is_not_hashed_nor_shown() {
        let good = "k".repeat(MIN_KEY_BYTES);
        for wrong in ["", "\n\n", "secret", &format!("{good}\n{good} {good}"), &format!("{good}ä")] {
            let error = hashed(wrong, "a").unwrap_err();
            assert!(!error.contains("secret") && !error.contains(&good), "{error}");
        }
        assert!(hashed(&format!("{good}\nshort"), "a").unwrap_err().starts_with("key 2: expected at least 22"));
    }
}
