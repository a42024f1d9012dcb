//! Sizes as people write them: `512M`, `1.5G`, plain bytes. K, M, G and T are binary.

use std::fmt;

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SizeError {
    /// It does not read as a number with an optional unit.
    Syntax {
        /// The text.
        text: String,
    },
    /// It is larger than any memory or file.
    TooLarge {
        /// The text.
        text: String,
    },
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { text } => {
                write!(f, "{text:?} is not a size; write 536870912, 512M or 1.5G")
            }
            Self::TooLarge { text } => write!(f, "{text} is larger than any size that can be"),
        }
    }
}

impl std::error::Error for SizeError {}

/// Digits after the point that are read.
const FRACTION_DIGITS_MAX: usize = 9;

/// Bytes that a text names: a number, with K, M, G or T for powers of 1,024.
///
/// Lower case and the endings `B` and `iB` are understood too; a fraction needs a unit and is
/// rounded down to whole bytes.
///
/// # Errors
/// [`SizeError`], whose text is fit for the user.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let syntax = || SizeError::Syntax {
        text: text.to_owned(),
    };
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(syntax()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let plain = fraction.is_empty() && !number.contains('.');
    if whole.is_empty() || fraction.len() > FRACTION_DIGITS_MAX || (shift == 0 && !plain) {
        return Err(syntax());
    }
    let too_large = || SizeError::TooLarge {
        text: text.to_owned(),
    };
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let part = match fraction {
        "" if plain => 0,
        _ => {
            let digits: u64 = fraction.parse().map_err(|_| syntax())?;
            let of = 10u128.pow(fraction.len() as u32);
            ((u128::from(digits) << shift) / of) as u64
        }
    };
    whole
        .checked_mul(1 << shift)
        .and_then(|bytes| bytes.checked_add(part))
        .ok_or_else(too_large)
}

/// A size for people, three digits or so: `97.2 MiB`.
pub fn text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 10.0 {
        2
    } else {
        usize::from(value < 100.0)
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A number with commas between groups of three digits: `98,362,432`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_exact() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("12b", 12),
            ("1K", 1024),
            ("512M", 512 << 20),
            (" 512 MiB ", 512 << 20),
            ("2g", 2 << 30),
            ("1.5G", 3 << 29),
            ("0.1K", 102),
            ("3TB", 3 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_in_words() {
        for text in [
            "",
            "M",
            "-1",
            "1.5",
            "1..5G",
            "1.G",
            ".5G",
            "12X",
            "1e9",
            "1.0123456789G",
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(
                error,
                SizeError::Syntax {
                    text: text.to_owned()
                }
            );
            assert!(
                error.to_string().contains("is not a size; write"),
                "{error}"
            );
        }
        for text in ["18446744073709551616", "99999999999T", "16777216T"] {
            let error = parse(text).unwrap_err();
            assert_eq!(
                error,
                SizeError::TooLarge {
                    text: text.to_owned()
                }
            );
            assert!(error.to_string().contains("larger than any"), "{error}");
        }
    }

    #[test]
    fn texts_are_short() {
        let texts = [
            0,
            1023,
            1024,
            98_362_432,
            999 << 20,
            1_117_320_768,
            u64::MAX,
        ]
        .map(text);
        let want = [
            "0 B",
            "1023 B",
            "1.00 KiB",
            "93.8 MiB",
            "999 MiB",
            "1.04 GiB",
            "16777216 TiB",
        ];
        assert_eq!(texts, want);
        assert_eq!(
            [7, 1234, 98_362_432].map(grouped),
            ["7", "1,234", "98,362,432"]
        );
    }
}
