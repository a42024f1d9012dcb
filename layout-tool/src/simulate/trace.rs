//! Traces: which neurons each token used, as `profile --trace` writes them.
//!
//! Little-endian u32 words: [`MAGIC`], feed-forward sections (layer by layer, expert by expert),
//! neurons of a section, neurons of a bundle; then for each token and section a count and so many
//! neuron indices, ascending. Neurons are in the order of the image, hottest first.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// First word of a trace.
pub const MAGIC: u32 = 0x5452_5431;
/// Bytes of a word.
const WORD_BYTES: u64 = 4;

/// What is wrong with a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be read.
    Io(ErrorKind, String),
    /// The first word is this one.
    Magic(u32),
    /// Sections, neurons and bundle of the header cannot be those of a model.
    Header([u32; 3]),
    /// It ends after `offset` bytes, within a token.
    Truncated {
        /// Its bytes.
        offset: u64,
        /// The token.
        token: usize,
    },
    /// A section has more active neurons than neurons.
    Count {
        /// Where it says so.
        at: Place,
        /// Active neurons.
        count: u32,
        /// Neurons of a section.
        neurons: u32,
    },
    /// A neuron's index is too large.
    Neuron {
        /// Where it stands.
        at: Place,
        /// The index.
        neuron: u32,
        /// Neurons of a section.
        neurons: u32,
    },
    /// A neuron's index is not above the one before.
    Order {
        /// Where it stands.
        at: Place,
        /// The index.
        neuron: u32,
        /// The one before.
        last: u32,
    },
    /// It has so few tokens that none can be learned from, or none be scored.
    Tokens(usize),
    /// More demands than can be counted.
    Demands {
        /// The first one too many.
        at: Place,
    },
    /// All neurons are resident.
    Prefix {
        /// Neurons of a section.
        neurons: u32,
    },
}

/// Where a word stands in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bytes before it.
    pub offset: u64,
    /// Token that it belongs to.
    pub token: usize,
    /// Section that it belongs to.
    pub section: u32,
}

/// A fault, and the file that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceError {
    /// The trace.
    pub path: PathBuf,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            offset,
            token,
            section,
        } = self;
        write!(f, "byte {offset} (token {token}, section {section})")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_, text) => write!(f, "{text}"),
            Self::Magic(word) => write!(
                f,
                "it begins with {word:#010x}, and a trace with {MAGIC:#010x}; \
                 write one with layout-tool profile --trace"
            ),
            Self::Header([sections, neurons, bundle]) => write!(
                f,
                "its header names {sections} sections of {neurons} neurons in bundles of {bundle}; \
                 none may be 0, bundles must be whole, and all of them fewer than 2^32 - 1"
            ),
            Self::Truncated { offset, token } => {
                write!(f, "it ends at byte {offset}, within token {token}")
            }
            Self::Count { at, count, neurons } => {
                write!(
                    f,
                    "{at}: {count} active neurons, and a section has {neurons}"
                )
            }
            Self::Neuron {
                at,
                neuron,
                neurons,
            } => {
                write!(f, "{at}: neuron {neuron}, and a section has {neurons}")
            }
            Self::Order { at, neuron, last } => write!(
                f,
                "{at}: neuron {neuron} follows neuron {last}, and they must ascend"
            ),
            Self::Tokens(count) => write!(
                f,
                "it has {count} tokens; the first half is learned from and the second scored, \
                 so 2 are the least"
            ),
            Self::Demands { at } => write!(f, "{at}: more than 2^32 - 2 demands of cold bundles"),
            Self::Prefix { neurons } => write!(
                f,
                "all {neurons} neurons of a section are resident, so nothing is cold; \
                 take a smaller --prefix"
            ),
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.fault)
    }
}

impl std::error::Error for TraceError {}

/// The demands of cold bundles in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Feed-forward sections.
    pub sections: u32,
    /// Cold bundles of a section.
    pub section_bundles: u32,
    /// Bundles in the order in which they are asked for: section * `section_bundles` + bundle.
    pub demands: Vec<u32>,
    /// Demands before the end of each token.
    ends: Vec<usize>,
}

impl Trace {
    /// Reads a trace; the share `prefix` of each section's neurons, rounded down to whole bundles,
    /// is resident and left out.
    ///
    /// # Errors
    /// [`TraceError`] for anything that is not a trace.
    pub fn open(path: &Path, prefix: f64) -> Result<Self, TraceError> {
        File::open(path)
            .map_err(|error| io_fault(&error))
            .and_then(|file| Trace::read(BufReader::with_capacity(1 << 20, file), prefix))
            .map_err(|fault| TraceError {
                path: path.into(),
                fault,
            })
    }

    /// [`Trace::open`] for any source of bytes.
    ///
    /// # Errors
    /// The first [`Fault`].
    ///
    /// # Panics
    /// Where `prefix` is not within 0 and 1.
    pub fn read(source: impl Read, prefix: f64) -> Result<Self, Fault> {
        assert!((0.0..=1.0).contains(&prefix), "a prefix of {prefix}");
        let mut words = Words { source, offset: 0 };
        let mut header = [0; 4];
        for word in &mut header {
            *word = words.next(0)?;
        }
        let [magic, sections, neurons, bundle] = header;
        if magic != MAGIC {
            return Err(Fault::Magic(magic));
        }
        let bundles = neurons.checked_div(bundle).unwrap_or(0);
        let whole = bundles > 0 && neurons.is_multiple_of(bundle);
        if !whole || sections == 0 || sections as u64 * bundles as u64 >= u32::MAX as u64 {
            return Err(Fault::Header([sections, neurons, bundle]));
        }
        let resident = (prefix * bundles as f64) as u32;
        if resident >= bundles {
            return Err(Fault::Prefix { neurons });
        }
        let mut trace = Trace {
            sections,
            section_bundles: bundles - resident,
            demands: Vec::new(),
            ends: Vec::new(),
        };
        while let Some(count) = words.next_or_end(trace.tokens())? {
            let mut count = Some(count);
            for section in 0..sections {
                let count = match count.take() {
                    Some(first) => first,
                    None => words.next(trace.tokens())?,
                };
                let at = words.section(trace.tokens(), section);
                trace.add_section(&mut words, at, count, [neurons, bundle, resident])?;
            }
            trace.ends.push(trace.demands.len());
        }
        match trace.tokens() {
            tokens @ 0..=1 => Err(Fault::Tokens(tokens)),
            _ => Ok(trace),
        }
    }

    /// Reads the `count` neurons of one token in one section.
    fn add_section(
        &mut self,
        words: &mut Words<impl Read>,
        at: Place,
        count: u32,
        [neurons, bundle, resident]: [u32; 3],
    ) -> Result<(), Fault> {
        if count > neurons {
            return Err(Fault::Count { at, count, neurons });
        }
        let base = at.section * self.section_bundles;
        let mut last = None;
        for _ in 0..count {
            let neuron = words.next(at.token)?;
            let at = words.section(at.token, at.section);
            if neuron >= neurons {
                return Err(Fault::Neuron {
                    at,
                    neuron,
                    neurons,
                });
            }
            if let Some(last) = last.filter(|&last| last >= neuron) {
                return Err(Fault::Order { at, neuron, last });
            }
            let asked = last.is_some_and(|last| last / bundle == neuron / bundle);
            last = Some(neuron);
            if neuron / bundle < resident || asked {
                continue;
            }
            if self.demands.len() >= u32::MAX as usize - 1 {
                return Err(Fault::Demands { at });
            }
            self.demands.push(base + neuron / bundle - resident);
        }
        Ok(())
    }

    /// The trace of passes that carry `batch` consecutive tokens each: what any of them needs is
    /// asked for once. Tokens that fill no batch are left out.
    ///
    /// # Panics
    /// If a batch has no tokens.
    pub fn joined(&self, batch: usize) -> Trace {
        let (mut demands, mut ends) = (Vec::new(), Vec::new());
        for pass in 0..self.tokens() / batch {
            let first = self.token(pass * batch).start;
            let last = self.token(pass * batch + batch - 1).end;
            let begun = demands.len();
            demands.extend(&self.demands[first..last]);
            demands[begun..].sort_unstable();
            let mut kept = begun;
            for at in begun..demands.len() {
                if at == begun || demands[at] != demands[kept - 1] {
                    demands[kept] = demands[at];
                    kept += 1;
                }
            }
            demands.truncate(kept);
            ends.push(kept);
        }
        Trace {
            demands,
            ends,
            ..*self
        }
    }

    /// Cold bundles of all sections.
    pub fn bundles(&self) -> usize {
        self.sections as usize * self.section_bundles as usize
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.ends.len()
    }

    /// Demands of `token`, as a range of [`Trace::demands`].
    pub fn token(&self, token: usize) -> Range<usize> {
        let start = token.checked_sub(1).map_or(0, |last| self.ends[last]);
        start..self.ends[token]
    }
}

fn io_fault(error: &io::Error) -> Fault {
    Fault::Io(error.kind(), error.to_string())
}

/// Words of a file, and how far it has been read.
struct Words<R> {
    source: R,
    offset: u64,
}

impl<R: Read> Words<R> {
    /// The next word, or `None` at the end of the file.
    fn next_or_end(&mut self, token: usize) -> Result<Option<u32>, Fault> {
        let mut bytes = [0; WORD_BYTES as usize];
        let mut have = 0;
        while have < bytes.len() {
            match self.source.read(&mut bytes[have..]) {
                Ok(0) => break,
                Ok(count) => have += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(io_fault(&error)),
            }
        }
        self.offset += have as u64;
        match have {
            0 => Ok(None),
            4 => Ok(Some(u32::from_le_bytes(bytes))),
            _ => Err(Fault::Truncated {
                offset: self.offset,
                token,
            }),
        }
    }

    fn next(&mut self, token: usize) -> Result<u32, Fault> {
        let offset = self.offset;
        self.next_or_end(token)?
            .ok_or(Fault::Truncated { offset, token })
    }

    /// Place of the word that was read last.
    fn section(&self, token: usize, section: u32) -> Place {
        Place {
            offset: self.offset - WORD_BYTES,
            token,
            section,
        }
    }
}
