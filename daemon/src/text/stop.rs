//! Stop strings: text that ends the generation and is not printed.

/// So many stop strings at most: each costs a step for each byte.
const STOPS_MAX: usize = 64;

/// The longest stop string, in bytes.
const STOP_BYTES_MAX: usize = 1024;

/// Why a stop string is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopError {
    /// An empty string would end everything at once.
    Empty {
        /// Position among the stop strings.
        index: usize,
    },
    /// Longer than is allowed.
    TooLong {
        /// Position among the stop strings.
        index: usize,
        /// Its length.
        have_bytes: usize,
        /// The longest allowed.
        max_bytes: usize,
    },
    /// More than are allowed.
    TooMany {
        /// As many were given.
        have: usize,
        /// As many are allowed.
        max: usize,
    },
}

impl std::fmt::Display for StopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty { index } => write!(f, "stop string {index} is empty"),
            Self::TooLong {
                index,
                have_bytes,
                max_bytes,
            } => {
                write!(
                    f,
                    "stop string {index} has {have_bytes} bytes, at most {max_bytes} may be"
                )
            }
            Self::TooMany { have, max } => write!(f, "{have} stop strings, at most {max} may be"),
        }
    }
}

impl std::error::Error for StopError {}

/// One stop string and how much of it the latest bytes are.
///
/// Source: Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", 1977.
#[derive(Debug)]
struct Stop {
    text: Vec<u8>,
    /// `borders[n]`: the longest proper prefix of the text that is also a suffix of its first
    /// `n + 1` bytes.
    borders: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Self {
        let text = text.as_bytes().to_vec();
        let mut stop = Stop {
            borders: vec![0; text.len()],
            text,
            matched: 0,
        };
        for index in 1..stop.text.len() {
            stop.step(stop.text[index]);
            stop.borders[index] = stop.matched;
        }
        stop.matched = 0;
        stop
    }

    /// Takes the next byte; true when the whole text has come.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if self.text[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.text.len()
    }
}

/// Lets bytes through until a stop string is complete, and holds back what could begin one.
///
/// What comes out does not depend on how the bytes were cut: the stop string that is complete
/// first ends it, of those that end together the longest.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<Stop>,
    held: Vec<u8>,
    stopped: bool,
}

impl StopFilter {
    /// Without stop strings everything passes at once.
    ///
    /// # Errors
    ///
    /// A stop string that is empty or too long, or too many of them.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        if stops.len() > STOPS_MAX {
            return Err(StopError::TooMany {
                have: stops.len(),
                max: STOPS_MAX,
            });
        }
        for (index, stop) in stops.iter().enumerate() {
            let have_bytes = stop.as_ref().len();
            if have_bytes == 0 {
                return Err(StopError::Empty { index });
            }
            if have_bytes > STOP_BYTES_MAX {
                return Err(StopError::TooLong {
                    index,
                    have_bytes,
                    max_bytes: STOP_BYTES_MAX,
                });
            }
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        Ok(StopFilter {
            stops,
            held: Vec::new(),
            stopped: false,
        })
    }

    /// Appends to `passed` the bytes that are no part of a stop string. True once one is complete;
    /// after that nothing passes.
    pub fn push(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> bool {
        for &byte in bytes {
            if self.stopped {
                break;
            }
            self.held.push(byte);
            let mut stop_len = 0;
            for stop in &mut self.stops {
                if stop.step(byte) {
                    stop_len = stop_len.max(stop.text.len());
                }
            }
            if stop_len > 0 {
                self.held.truncate(self.held.len() - stop_len);
                passed.append(&mut self.held);
                self.stopped = true;
            }
        }
        if !self.stopped {
            let begun = self
                .stops
                .iter()
                .map(|stop| stop.matched)
                .max()
                .unwrap_or(0);
            passed.extend(self.held.drain(..self.held.len() - begun));
        }
        self.stopped
    }

    /// The end: what was held back passes after all.
    pub fn finish(&mut self, passed: &mut Vec<u8>) {
        passed.append(&mut self.held);
    }

    /// Whether a stop string is complete.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }
}
