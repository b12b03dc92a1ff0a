//! Where axes begin and end, where they are marked, and how values are written.

use std::ops::Range;

/// Least time on the logarithmic axis, which has no zero.
pub(super) const LEAST_SECONDS: f64 = 1e-6;
/// Largest time on the axis: more than a year is no time to first token.
const MOST_SECONDS: f64 = 1e8;

/// The axis that holds all these times, with some room at both ends.
pub(super) fn seconds_range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for value in values {
        least = least.min(on_axis(value));
        most = most.max(on_axis(value));
    }
    if most == 0.0 { 0.001..1.0 } else { least * 0.8..most * 1.25 }
}

/// The nearest time that the axis can show.
pub(super) fn on_axis(seconds: f64) -> f64 {
    seconds.clamp(LEAST_SECONDS, MOST_SECONDS)
}

/// Marks with a label: 1, 10, 100, and 2 and 5 between them while there is room.
pub(super) fn labelled(range: &Range<f64>) -> Vec<f64> {
    let decades = (range.end / range.start).log10();
    marks(range, if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] })
}

/// Marks without a label.
pub(super) fn unlabelled(range: &Range<f64>) -> Vec<f64> {
    marks(range, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
}

fn marks(range: &Range<f64>, digits: &[f64]) -> Vec<f64> {
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let all = decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10_f64.powi(decade)));
    all.filter(|mark| range.contains(mark)).collect()
}

/// A time in the unit that suits it, three digits.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        ..0.000_999_5 => format!("{} µs", three_digits(seconds * 1e6)),
        ..0.999_5 => format!("{} ms", three_digits(seconds * 1e3)),
        _ => format!("{} s", three_digits(seconds)),
    }
}

/// A mark of the axis of times, which is a round number.
pub(super) fn time_mark(seconds: f64) -> String {
    let text = time(seconds);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// A number of tokens with its power of a thousand.
pub(super) fn tokens(tokens: f64) -> String {
    let (divided, unit) = match tokens {
        ..1e3 => (tokens, ""),
        ..1e6 => (tokens / 1e3, " k"),
        ..1e9 => (tokens / 1e6, " M"),
        _ => (tokens / 1e9, " G"),
    };
    // The marks of an axis are round, so two digits behind the point are all there are.
    format!("{}{unit}", (divided * 100.0).round() / 100.0)
}

fn three_digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_room_around_its_values_whatever_they_are() {
        assert_eq!(seconds_range([].into_iter()), 0.001..1.0);
        for values in [vec![0.0], vec![1.0], vec![0.0, 1e300], vec![0.05, 0.06]] {
            let range = seconds_range(values.iter().copied());
            assert!(values.iter().all(|&value| range.contains(&on_axis(value))), "{values:?} in {range:?}");
            assert!(range.end / range.start > 1.5 && range.start > 0.0 && range.end < 1e9, "{range:?}");
        }
    }

    #[test]
    fn marks_are_round_and_as_many_as_fit() {
        assert_eq!(
            labelled(&(0.08..1.1)).iter().map(|&mark| time_mark(mark)).collect::<Vec<_>>(),
            ["100 ms", "200 ms", "500 ms", "1 s"]
        );
        assert_eq!(
            labelled(&(0.008..1_001.0)).iter().map(|&mark| time_mark(mark)).collect::<Vec<_>>(),
            ["10 ms", "100 ms", "1 s", "10 s", "100 s", "1000 s"]
        );
    }

    #[test]
    fn values_are_written_with_their_unit() {
        let written = [0.0, 0.000_05, 0.0304, 0.9999, 4.8, 76.04, 446.2].map(time);
        assert_eq!(written, ["0 s", "50.0 µs", "30.4 ms", "1.00 s", "4.80 s", "76.0 s", "446 s"]);
        assert_eq!([0.0, 500.0, 250_000.0, 2_500_000.0, 3e9].map(tokens), ["0", "500", "250 k", "2.5 M", "3 G"]);
    }
}
