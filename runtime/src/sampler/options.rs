//! What a caller may ask of the sampler, and what is refused.

/// Adds `bias` to the logit of token `id`; negative infinity bans the token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bias {
    /// The token.
    pub id: u32,
    /// Finite, or negative infinity.
    pub bias: f32,
}

/// How a token is chosen. Each part has a value that turns it off; [`SamplerOptions::GREEDY`] has
/// them all off, `default()` has llama.cpp's defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerOptions<'a> {
    /// Added to the logits before all else. Off: empty.
    pub logit_biases: &'a [Bias],
    /// The penalties look at this many of the last tokens. Off: 0; all of them: `usize::MAX`.
    pub penalty_last_count: usize,
    /// Positive logits of seen tokens are divided by it, others multiplied. Off: 1.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit once for each time it was seen. Off: 0.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of each seen token. Off: 0.
    pub presence_penalty: f32,
    /// Keeps so many of the most likely tokens. Off: 0.
    pub top_k: usize,
    /// Keeps the tokens whose surprise is nearest to the expected one, up to this probability.
    /// In (0, 1]. Off: 1.
    pub typical_p: f32,
    /// Keeps the most likely tokens that together have this probability. In (0, 1]. Off: 1.
    pub top_p: f32,
    /// Keeps the tokens at least so likely as this fraction of the likeliest. In [0, 1]. Off: 0.
    pub min_p: f32,
    /// Divides the logits before the draw; 0 takes the likeliest token, without a draw.
    pub temperature: f32,
    /// The same seed gives the same draws.
    pub seed: u64,
}

impl SamplerOptions<'_> {
    /// Always the likeliest token.
    pub const GREEDY: SamplerOptions<'static> = SamplerOptions {
        logit_biases: &[],
        penalty_last_count: 0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        top_k: 0,
        typical_p: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        temperature: 0.0,
        seed: 0,
    };

    /// # Errors
    ///
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), OptionsError> {
        let fraction = |p: f32| p > 0.0 && p <= 1.0;
        let checks = [
            (
                self.temperature.is_finite() && self.temperature >= 0.0,
                OptionsError::Temperature,
            ),
            (fraction(self.top_p), OptionsError::TopP),
            (fraction(self.typical_p), OptionsError::TypicalP),
            ((0.0..=1.0).contains(&self.min_p), OptionsError::MinP),
            (
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
                OptionsError::RepetitionPenalty,
            ),
            (
                self.frequency_penalty.is_finite(),
                OptionsError::FrequencyPenalty,
            ),
            (
                self.presence_penalty.is_finite(),
                OptionsError::PresencePenalty,
            ),
        ];
        for (good, error) in checks {
            if !good {
                return Err(error);
            }
        }
        let good = |bias: f32| bias.is_finite() || bias == f32::NEG_INFINITY;
        match self.logit_biases.iter().position(|entry| !good(entry.bias)) {
            Some(index) => Err(OptionsError::Bias { index }),
            None => Ok(()),
        }
    }
}

impl Default for SamplerOptions<'_> {
    fn default() -> Self {
        SamplerOptions {
            penalty_last_count: 64,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            temperature: 0.8,
            ..Self::GREEDY
        }
    }
}

/// The option that is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum OptionsError {
    /// Negative or not finite.
    Temperature,
    /// Not in (0, 1].
    TopP,
    /// Not in (0, 1].
    TypicalP,
    /// Not in [0, 1].
    MinP,
    /// Not finite or not above 0.
    RepetitionPenalty,
    /// Not finite.
    FrequencyPenalty,
    /// Not finite.
    PresencePenalty,
    /// This entry of the biases is neither finite nor negative infinity.
    Bias {
        /// Position in `logit_biases`.
        index: usize,
    },
}

impl core::fmt::Display for OptionsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Temperature => f.write_str("the temperature must be finite and not negative"),
            Self::TopP => f.write_str("top-p must be above 0 and at most 1"),
            Self::TypicalP => f.write_str("typical-p must be above 0 and at most 1"),
            Self::MinP => f.write_str("min-p must be between 0 and 1"),
            Self::RepetitionPenalty => {
                f.write_str("the repetition penalty must be finite and above 0")
            }
            Self::FrequencyPenalty => f.write_str("the frequency penalty must be finite"),
            Self::PresencePenalty => f.write_str("the presence penalty must be finite"),
            Self::Bias { index } => {
                write!(f, "bias {index} is neither finite nor negative infinity")
            }
        }
    }
}

impl core::error::Error for OptionsError {}
