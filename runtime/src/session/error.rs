//! Why a session cannot go on.

use crate::arena::OutOfMemory;
use crate::weights::WeightsError;

/// Why a session cannot go on with what was asked. It stays usable.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum SessionError {
    /// The region is smaller than the plan.
    OutOfMemory(OutOfMemory),
    /// Weights cannot be read, or are damaged.
    Weights(WeightsError),
    /// The tokens do not fit the context.
    ContextLengthExceeded {
        /// Positions needed.
        need: usize,
        /// Positions there are.
        max: usize,
    },
    /// A token is not in the vocabulary.
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// A sequence there is no room for.
    SequenceOutOfRange {
        /// The sequence.
        sequence: usize,
        /// Sequences there are.
        max: usize,
    },
    /// A sequence was to be advanced by two tokens at once.
    SequenceTwice {
        /// The sequence.
        sequence: usize,
    },
    /// No tokens were given.
    NoTokens,
    /// The cancel flag was set.
    Cancelled,
    /// The weights were not loaded, or not to the end.
    NotLoaded,
    /// The cache of cold neurons cannot give so much memory back.
    NotEnoughCache {
        /// Bytes asked for.
        want_bytes: usize,
        /// The most that can be given.
        have_bytes: usize,
    },
    /// A logit is not a finite number: the weights or the arithmetic are broken.
    NotFinite {
        /// Position of the token whose logits they are.
        pos: usize,
    },
}

impl From<WeightsError> for SessionError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(error)
    }
}

impl From<OutOfMemory> for SessionError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

impl core::fmt::Display for SessionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::OutOfMemory(OutOfMemory { short_bytes }) => {
                write!(f, "the region is {short_bytes} bytes smaller than the plan")
            }
            Self::Weights(error) => error.fmt(f),
            Self::ContextLengthExceeded { need, max } => {
                write!(
                    f,
                    "context length exceeded: {need} positions are needed, {max} there are"
                )
            }
            Self::TokenOutOfRange { token, vocab_size } => {
                write!(f, "token {token} is not in the vocabulary of {vocab_size}")
            }
            Self::SequenceOutOfRange { sequence, max } => {
                write!(f, "there is no sequence {sequence}, the session has {max}")
            }
            Self::SequenceTwice { sequence } => {
                write!(f, "sequence {sequence} was given twice")
            }
            Self::NoTokens => write!(f, "there is no token to begin with"),
            Self::Cancelled => write!(f, "cancelled"),
            Self::NotLoaded => write!(f, "the weights are not loaded yet"),
            Self::NotEnoughCache {
                want_bytes,
                have_bytes,
            } => write!(
                f,
                "{want_bytes} bytes were to be given back, the cache of cold neurons has \
                 {have_bytes} to give"
            ),
            Self::NotFinite { pos } => {
                write!(f, "the logits at position {pos} are not finite numbers")
            }
        }
    }
}

impl core::error::Error for SessionError {}
