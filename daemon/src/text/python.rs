//! What chat templates expect of Python: `json.dumps`, `strftime`, and how values print.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind, Output, State};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// The deepest indentation of [`to_json`].
const INDENT_MAX: usize = 16;

/// `json.dumps` with `", "` and `": "` between the parts, as Python writes them.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        w.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        w.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

/// The filter `tojson`: `json.dumps(value, ensure_ascii=False, indent=indent)`. Unlike Jinja's
/// own it does not escape for HTML; the other keywords of `dumps` are refused.
pub(super) fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    if ensure_ascii == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: ensure_ascii is not known",
        ));
    }
    let mut json = Vec::new();
    let result = match indent {
        Some(indent) => {
            let spaces = [b' '; INDENT_MAX];
            let formatter = PrettyFormatter::with_indent(&spaces[..indent.min(INDENT_MAX)]);
            value.serialize(&mut Serializer::with_formatter(&mut json, formatter))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, PythonFormatter)),
    };
    let error = |reason: String| Error::new(ErrorKind::BadSerialization, reason);
    result.map_err(|reason| error(reason.to_string()))?;
    String::from_utf8(json).map_err(|reason| error(reason.to_string()))
}

/// Prints `None`, `True` and `False` as Python does, all else as minijinja does.
pub(super) fn print(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if value.is_none() {
        return out.write_str("None").map_err(Error::from);
    }
    match bool::try_from(value.clone()) {
        Ok(truth) if value.kind() == minijinja::value::ValueKind::Bool => out
            .write_str(if truth { "True" } else { "False" })
            .map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// Rewrites the tags `generation` and `endgeneration`, which `transformers` adds to Jinja to mark
/// the assistant's words for training, to a condition that always holds.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut rewritten = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else {
            break;
        };
        let tag = &rest[start + 2..start + len];
        let name = tag
            .trim_start_matches(['-', '+'])
            .trim_end_matches(['-', '+'])
            .trim();
        let replacement = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => name,
        };
        rewritten.push_str(&rest[..start + 2]);
        rewritten.push_str(&tag.replacen(name, replacement, 1));
        rest = &rest[start + len..];
    }
    rewritten.push_str(rest);
    rewritten
}

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

/// Days of the week from the epoch's, a Thursday.
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// Year, month from 1 and day from 1 of a day counted from 1970-01-01.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil_from_days(days: i64) -> (i64, usize, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (
        year_of_era + era * 400 + i64::from(month <= 2),
        month as usize,
        day,
    )
}

/// `strftime` of a time in UTC, in English.
///
/// # Errors
///
/// The letter after `%` that is not known, or `%` where there is none.
pub(super) fn strftime(format: &str, unix_s: i64) -> Result<String, char> {
    let days = unix_s.div_euclid(86_400);
    let second_of_day = unix_s.rem_euclid(86_400);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute) = (second_of_day / 3600, second_of_day / 60 % 60);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[days.rem_euclid(7) as usize]);
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        text += &match letters.next() {
            Some('Y') => format!("{year:04}"),
            Some('y') => format!("{:02}", year.rem_euclid(100)),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{:02}", second_of_day % 60),
            Some('p') => (if hour < 12 { "AM" } else { "PM" }).to_string(),
            Some('B') => month_name.to_string(),
            Some('b') => month_name[..3].to_string(),
            Some('A') => day_name.to_string(),
            Some('a') => day_name[..3].to_string(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second_of_day % 60),
            Some('Z') => "UTC".to_string(),
            Some('z') => "+0000".to_string(),
            Some('%') => "%".to_string(),
            other => return Err(other.unwrap_or('%')),
        };
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_python_writes_them() {
        let all = "%Y %y %m %d %e %H %I %M %S %p %B %b %A %a %F %T %Z %z %%";
        let date = |unix_s| strftime(all, unix_s).unwrap();
        assert_eq!(
            date(1_700_000_000),
            "2023 23 11 14 14 22 10 13 20 PM November Nov Tuesday Tue \
             2023-11-14 22:13:20 UTC +0000 %"
        );
        assert!(date(0).starts_with("1970 70 01 01  1 00 12 00 00 AM January Jan Thursday Thu"));
        assert!(date(-1).starts_with("1969 69 12 31 31 23 11 59 59 PM December Dec Wednesday"));
        assert_eq!(strftime("%d %b %Y", 1_709_164_800).unwrap(), "29 Feb 2024");
        assert_eq!(strftime("%F", 951_868_799).unwrap(), "2000-02-29");
        assert_eq!(strftime("%Q", 0), Err('Q'));
        assert_eq!(strftime("50%", 0), Err('%'));
    }

    #[test]
    fn generation_tags_keep_their_whitespace_control() {
        let rewrite = without_generation_tags;
        assert_eq!(
            rewrite("a{%- generation -%}b{% endgeneration %}"),
            "a{%- if true -%}b{% endif %}"
        );
        assert_eq!(
            rewrite("{%generation%}{%+ generation2 %}"),
            "{%if true%}{%+ generation2 %}"
        );
        assert_eq!(rewrite("no tags {% never ends"), "no tags {% never ends");
        assert_eq!(
            rewrite("{% if generation %}x{% endif %}"),
            "{% if generation %}x{% endif %}"
        );
    }
}
