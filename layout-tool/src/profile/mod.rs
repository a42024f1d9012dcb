//! Calibration: runs a model over a text and writes the same image with its neurons in a better
//! order, with statistics of their activity and, for sparse models, with predictors.
//!
//! The model runs in the runtime itself, which shows what its neurons do; that is kept in a journal
//! beside the output (`OUT.profile`), so that an interrupted run continues. Everything is computed
//! from the journal, section by section: the result depends neither on threads nor on
//! interruptions.

mod activity;
mod analysis;
mod curve;
mod engine;
mod error;
mod frequency;
mod journal;
mod observe;
mod order;
mod predictor;
mod report;
mod rewrite;
#[cfg(test)]
mod testing;
mod text;
mod threshold;
mod trace;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sha2::{Digest, Sha256};
use tessera_kernels::{Activation, BLOCK};
use tessera_runtime::format::{FfnMap, Image};
use tessera_runtime::shape::Shape;

pub use engine::available_bytes;
pub use error::ProfileError;
pub use report::{ProfileReport, SectionReport, Table};
pub use text::Text;
pub use trace::MAGIC as TRACE_MAGIC;

use crate::image_file::ImageFile;
use crate::inspect::hex;
use crate::pack::check_target;
use crate::parallel;
use activity::{Activity, Cut};
use analysis::{Found, Wanted, down_norms};
use journal::{Journal, Kind};
use observe::{Recorder, Watch};
use threshold::Histogram;

/// Tokens that stand in one context, at most.
const CHUNK_TOKENS: usize = 512;
/// Tokens of a text that are used unless another number is asked for.
pub const TOKENS_DEFAULT: usize = 8192;
/// Recall of predictors unless another is asked for.
pub const RECALL_DEFAULT: f32 = 0.99;
/// Share of a token's energy that thresholds may lose unless another is asked for.
pub const LOSS_DEFAULT: f64 = 0.01;

/// What to profile, with what, and where to.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileOptions {
    /// The image.
    pub image: PathBuf,
    /// The calibration text.
    pub text: Text,
    /// The image to be written.
    pub target: PathBuf,
    /// Tokens of the text that are used, at most.
    pub tokens: usize,
    /// Share of the activations' magnitude that predictors find.
    pub recall: f32,
    /// Share of a token's feed-forward energy that thresholds lose, in the mean.
    pub loss: f64,
    /// Fit predictors for models that are not made sparse by ReLU, too.
    pub predictors: bool,
    /// Where to write a trace of active neurons.
    pub trace: Option<PathBuf>,
    /// Replace an image that exists.
    pub force: bool,
    /// Threads; `None` for as many as the machine runs. The result does not depend on it.
    pub threads: Option<usize>,
    /// Bytes that the model may be run in; `None` for half of what is free.
    pub memory_bytes: Option<u64>,
}

impl ProfileOptions {
    /// The defaults for these files.
    pub fn new(image: impl Into<PathBuf>, text: Text, target: impl Into<PathBuf>) -> Self {
        ProfileOptions {
            image: image.into(),
            text,
            target: target.into(),
            tokens: TOKENS_DEFAULT,
            recall: RECALL_DEFAULT,
            loss: LOSS_DEFAULT,
            predictors: false,
            trace: None,
            force: false,
            threads: None,
            memory_bytes: None,
        }
    }

    fn check(&self) -> Result<(), ProfileError> {
        let refuse =
            |what, have: String, range| Err(ProfileError::OutOfRange { what, have, range });
        if self.tokens == 0 || u32::try_from(self.tokens).is_err() {
            return refuse("--tokens", self.tokens.to_string(), "1 to 4294967295");
        }
        if !(self.recall > 0.0 && self.recall <= 1.0) {
            return refuse("--recall", self.recall.to_string(), "above 0 and at most 1");
        }
        if !(0.0..1.0).contains(&self.loss) {
            return refuse("--loss", self.loss.to_string(), "at least 0 and below 1");
        }
        check_target(Some(&self.image), &self.target, self.force)?;
        Ok(())
    }
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Running the text to find thresholds; counted in tokens.
    Thresholds,
    /// Running the text to see which neurons are active; counted in tokens.
    Observing,
    /// Ordering neurons and fitting predictors; counted in feed-forward sections.
    Analysing,
    /// Writing the image; counted in bytes.
    Writing,
}

/// Told of a stage, of what is done and what there is to do, from any thread; false ends the run,
/// which can be continued.
pub type Progress<'a> = &'a (dyn Fn(Stage, u64, u64) -> bool + Sync);

/// The file that holds the progress of a run that writes `target`.
pub fn journal_path(target: &Path) -> PathBuf {
    let mut name = OsString::from(target);
    name.push(".profile");
    PathBuf::from(name)
}

/// Profiles an image. The new image appears under its name when it is complete and on disk.
///
/// # Errors
/// [`ProfileError`]; what was found so far is then in [`journal_path`].
pub fn profile(
    options: &ProfileOptions,
    progress: Progress<'_>,
) -> Result<ProfileReport, ProfileError> {
    let start = Instant::now();
    options.check()?;
    let file = ImageFile::open(&options.image)?;
    let image = file.image();
    let shape = *image.shape();
    let chunk = shape.seq_len.min(CHUNK_TOKENS);
    let tokens = options.text.tokens(&file, options.tokens, chunk)?;
    let sparse = matches!(shape.activation, Activation::Relu | Activation::ReluBoth);
    let mut run = Run {
        options,
        file: &file,
        shape,
        threads: options.threads.unwrap_or_else(parallel::threads).max(1),
        cut: Cut {
            tokens: tokens.len(),
            chunk,
        },
        sparse,
        inputs: (sparse || options.predictors) && shape.dim.is_multiple_of(BLOCK),
        journal: Journal::open(
            &journal_path(&options.target),
            &arguments(options, &image, &tokens, chunk),
        )?,
        engine: None,
        tokens,
        progress,
    };
    let thresholds = run.thresholds()?;
    run.observe(thresholds.clone())?;
    let found = run.analyse(thresholds)?;
    let (image_id, image_bytes) = run.write(&found)?;
    let notes = run.notes(&found);
    let sections = found.iter().enumerate().map(|(index, found)| {
        let n_ffns = shape.n_ffns();
        found.report(index / n_ffns, index % n_ffns, shape.dim)
    });
    let sections = sections.collect();
    let tokens = run.tokens.len();
    run.journal.remove()?;
    Ok(ProfileReport {
        image_id,
        image_bytes,
        tokens,
        n_experts: shape.n_experts,
        sections,
        notes,
        elapsed: start.elapsed(),
    })
}

/// Everything that results depend on.
fn arguments(
    options: &ProfileOptions,
    image: &Image<'_>,
    tokens: &[u32],
    chunk: usize,
) -> [(&'static str, String); 7] {
    let mut digest = Sha256::new();
    tokens
        .iter()
        .for_each(|token| digest.update(token.to_le_bytes()));
    let digest = digest.finalize();
    [
        ("image", hex(&image.superblock().image_id)),
        ("number of tokens", tokens.len().to_string()),
        ("text", hex(&digest[..8])),
        ("chunk", chunk.to_string()),
        ("recall", options.recall.to_string()),
        ("loss", options.loss.to_string()),
        ("choice of predictors", options.predictors.to_string()),
    ]
}

/// A run between its steps.
struct Run<'a> {
    options: &'a ProfileOptions,
    file: &'a ImageFile,
    shape: Shape,
    threads: usize,
    cut: Cut,
    /// Neurons are zero by themselves.
    sparse: bool,
    /// Inputs are kept, for predictors.
    inputs: bool,
    journal: Journal,
    engine: Option<engine::Runner>,
    tokens: Vec<u32>,
    progress: Progress<'a>,
}

impl Run<'_> {
    fn n_sections(&self) -> usize {
        self.shape.n_layers * self.shape.n_ffns()
    }

    /// Width of the inputs in the journal; 0 for none.
    fn dim(&self) -> usize {
        if self.inputs { self.shape.dim } else { 0 }
    }

    fn maps(&self) -> Vec<FfnMap> {
        let (image, n_ffns) = (self.file.image(), self.shape.n_ffns());
        (0..self.n_sections())
            .map(|section| image.ffn(section / n_ffns, section % n_ffns))
            .collect()
    }

    /// Shows the chunks of the text that no record of `kind` is about, and appends these.
    fn watch(&mut self, kind: Kind, stage: Stage, watch: Watch) -> Result<(), ProfileError> {
        let cut = self.cut;
        if self.journal.count(kind) == cut.chunks() {
            return Ok(());
        }
        let mut engine = match self.engine.take() {
            Some(engine) => engine,
            None => {
                let memory_bytes = self.options.memory_bytes;
                engine::start(self.file, cut.chunk, self.threads, memory_bytes)?
            }
        };
        let recorder = Recorder::new(&self.shape, watch);
        let batch = engine.plan().sizes.batch_tokens;
        for (index, tokens) in self.tokens.chunks(cut.chunk).enumerate() {
            let first = index * cut.chunk;
            if self.journal.has(kind, index) {
                continue;
            }
            engine.truncate(0);
            for (pass, tokens) in tokens.chunks(batch).enumerate() {
                let done = (first + pass * batch) as u64;
                if !(self.progress)(stage, done, cut.tokens as u64) {
                    return Err(ProfileError::Stopped);
                }
                recorder.begin_pass(pass * batch, cut.held_from().saturating_sub(first));
                engine.append_observed(tokens, &recorder).map_err(|error| {
                    let name = self.file.path().display();
                    ProfileError::Run(format!("{name}: {error}"))
                })?;
            }
            self.journal.append(kind, index, &recorder.take())?;
        }
        (self.progress)(stage, cut.tokens as u64, cut.tokens as u64);
        self.engine = Some(engine);
        Ok(())
    }

    /// Thresholds of all sections; `None` for a model whose neurons are zero by themselves.
    fn thresholds(&mut self) -> Result<Option<Vec<f32>>, ProfileError> {
        if self.sparse {
            return Ok(None);
        }
        if self.journal.count(Kind::Histograms) < self.cut.chunks() {
            let maps = self.maps();
            let file = self.file;
            let norms = |(): &mut (), section: usize| down_norms(file, &maps[section]);
            let norms = parallel::in_order(self.threads, maps.len(), || (), norms)?;
            let watch = Watch::Histograms(norms);
            self.watch(Kind::Histograms, Stage::Thresholds, watch)?;
        }
        let mut thresholds = Vec::new();
        for section in 0..self.n_sections() {
            let mut histogram = Histogram::new();
            for chunk in 0..self.cut.chunks() {
                let start = section * Histogram::BYTES;
                let len = Some(Histogram::BYTES);
                let bytes = self.journal.read(Kind::Histograms, chunk, start, len)?;
                histogram.add_stored(&bytes);
            }
            thresholds.push(histogram.threshold(self.options.loss));
        }
        Ok(Some(thresholds))
    }

    fn observe(&mut self, thresholds: Option<Vec<f32>>) -> Result<(), ProfileError> {
        let watch = Watch::Activity {
            thresholds,
            inputs: self.inputs,
        };
        self.watch(Kind::Activity, Stage::Observing, watch)?;
        self.engine = None;
        Ok(())
    }

    /// What there is to know about every section: from the journal, or found now.
    fn analyse(&mut self, thresholds: Option<Vec<f32>>) -> Result<Vec<Found>, ProfileError> {
        let (n_sections, done) = (self.n_sections(), AtomicUsize::new(0));
        let neurons = self.shape.ffn_dim;
        let (cut, dim) = (self.cut, self.dim());
        let maps = self.maps();
        let (file, options, progress) = (self.file, self.options, self.progress);
        let inputs = self.inputs;
        let journal = Mutex::new(&mut self.journal);
        let with = || journal.lock().unwrap_or_else(|poison| poison.into_inner());
        parallel::in_order(
            self.threads,
            n_sections,
            || (),
            |(), section| {
                let count = done.fetch_add(1, Ordering::Relaxed) as u64;
                if !progress(Stage::Analysing, count, n_sections as u64) {
                    return Err(ProfileError::Stopped);
                }
                if with().has(Kind::Section, section) {
                    let bytes = with().read(Kind::Section, section, 0, None)?;
                    if let Some(found) = Found::parse(&bytes, neurons) {
                        return Ok(found);
                    }
                }
                let activity = Activity::read(&with(), section, neurons, cut, dim)?;
                let wanted = Wanted {
                    threshold: thresholds.as_ref().map_or(0.0, |all| all[section]),
                    recall: inputs.then_some(options.recall),
                };
                let found = Found::new(file, &maps[section], &activity, wanted)?;
                with().append(Kind::Section, section, &found.store())?;
                Ok(found)
            },
        )
    }

    fn write(&self, found: &[Found]) -> Result<([u8; 16], u64), ProfileError> {
        if let Some(path) = &self.options.trace {
            let orders: Vec<&[u32]> = found.iter().map(|found| &found.order[..]).collect();
            trace::write(
                path,
                &self.shape,
                &self.journal,
                self.cut,
                self.dim(),
                &orders,
            )?;
        }
        let progress = |done, all| (self.progress)(Stage::Writing, done, all);
        rewrite::write(
            self.file,
            found,
            &self.options.target,
            self.threads,
            &progress,
        )
    }

    fn notes(&self, found: &[Found]) -> Vec<String> {
        let mut notes = Vec::new();
        let wanted = self.sparse || self.options.predictors;
        if !wanted {
            notes.push(format!(
                "no predictors: this model's gates ({}) are never zero, so all neurons count; \
                 --mode threshold skips small ones",
                self.shape.activation.name()
            ));
        }
        if wanted && !self.inputs {
            let dim = self.shape.dim;
            notes.push(format!(
                "no predictors: they need a width that is a multiple of 32, the model's is {dim}"
            ));
        }
        let without = found
            .iter()
            .filter(|found| found.predictor.is_none())
            .count();
        if self.inputs && without > 0 {
            notes.push(format!(
                "{without} of {} feed-forward sections served too few tokens for a predictor, use \
                 a longer text",
                found.len()
            ));
        }
        notes
    }
}
