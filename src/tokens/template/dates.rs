//! `strftime_now`: the date of the request, in UTC, as engines in containers have it.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind, Value};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment, taken apart.
struct Date {
    year: i64,
    /// From 0.
    month: usize,
    /// From 1.
    day: i64,
    /// From 0, with Sunday first.
    weekday: usize,
    /// From 1.
    day_of_year: i64,
    second_of_day: i64,
}

/// The function for templates that run at `now`.
pub(super) fn strftime_now(now: SystemTime) -> Value {
    Value::from_function(move |format: &str| Date::of(now).format(format))
}

// === impl Date ===

impl Date {
    /// Days to dates by the method of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    fn of(moment: SystemTime) -> Self {
        let seconds = moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let seconds = i64::try_from(seconds).unwrap_or_default();
        let days = seconds.div_euclid(86_400);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 2 } else { shifted_month - 10 };
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before_march = if is_leap { 60 } else { 59 };
        let day_of_year = if month < 2 { of_year - 305 } else { of_year + before_march + 1 };
        Self {
            year,
            month: usize::try_from(month).unwrap_or_default(),
            day,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or_default(),
            day_of_year,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }

    fn format(&self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                out.push(char);
                continue;
            }
            let (code, is_padded) = match chars.next() {
                Some('-') => (chars.next(), false),
                code => (code, true),
            };
            let field = code.and_then(|code| self.field(code));
            let field = field.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "unknown part of a date"))?;
            out.push_str(if is_padded { &field } else { unpadded(&field) });
        }
        Ok(out)
    }

    /// What a code of `strftime` stands for; none for those that depend on a place.
    fn field(&self, code: char) -> Option<String> {
        let (hour, minute) = (self.second_of_day / 3_600, self.second_of_day / 60 % 60);
        let hour_of_half = (hour + 11) % 12 + 1;
        let (month, day) = (MONTHS.get(self.month)?, DAYS.get(self.weekday)?);
        Some(match code {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month + 1),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'B' => (*month).to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => (*day).to_owned(),
            'a' => day[..3].to_owned(),
            'w' => self.weekday.to_string(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour_of_half:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", self.second_of_day % 60),
            'F' => self.format("%Y-%m-%d").ok()?,
            'T' => self.format("%H:%M:%S").ok()?,
            'D' => self.format("%m/%d/%y").ok()?,
            'R' => self.format("%H:%M").ok()?,
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// As glibc does for `%-d`.
fn unpadded(field: &str) -> &str {
    let rest = field.trim_start_matches([' ', '0']);
    if rest.is_empty() { "0" } else { rest }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        Date::of(UNIX_EPOCH + Duration::from_secs(seconds)).format(format).unwrap()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Each by `date -u -d @SECONDS`.
        assert_eq!(at(0, "%A %d %B %Y %j %H:%M:%S"), "Thursday 01 January 1970 001 00:00:00");
        assert_eq!(at(951_782_400, "%a %d %b %Y %j"), "Tue 29 Feb 2000 060");
        assert_eq!(at(951_868_800, "%F %j"), "2000-03-01 061");
        assert_eq!(at(1_735_603_199, "%F %T %p %I %j"), "2024-12-30 23:59:59 PM 11 365");
        assert_eq!(at(1_795_965_161, "%d %b %Y, %-d/%-m, %-I %p, %u %w"), "29 Nov 2026, 29/11, 3 PM, 7 0");
        assert_eq!(at(4_107_542_400, "%F %j"), "2100-03-01 060");
    }

    #[test]
    fn what_depends_on_a_place_is_not_guessed() {
        assert!(Date::of(UNIX_EPOCH).format("%c").is_err());
        assert!(Date::of(UNIX_EPOCH).format("%").is_err());
    }
}
