//! A model, its profile, and sessions over both.

use std::path::{Path, PathBuf};

use layout_tool::pack::{PackOptions, Weights};
use layout_tool::profile::{ProfileError, ProfileOptions, ProfileReport, Text, profile};
use tessera_hal::OneLane;
use tessera_hal::sim::{Latency, SimClock, SimFlash};
use tessera_kernels::Kernels;
use tessera_runtime::format::{Image, SectionKind};
use tessera_runtime::{Plan, PlanOptions, Session};

use crate::model::{SPEC, Spec, folder, packed};

/// Tokens of a chunk: the context of the small models.
pub const CHUNK: usize = 256;

/// A packed model in a folder that goes when the test ends.
pub struct Bench {
    pub folder: tempfile::TempDir,
    pub source: PathBuf,
    pub image: PathBuf,
    pub ids: Vec<u32>,
}

/// Models of every kind that a profile knows.
pub fn specs() -> [Spec; 3] {
    let relu = Spec {
        activation: "relu",
        ..SPEC
    };
    let mixture = Spec {
        model_type: "mixtral",
        n_experts: 3,
        ..relu
    };
    [relu, mixture, SPEC]
}

impl Bench {
    pub fn new(spec: &Spec, weights: Weights, bundle: usize, tokens: usize) -> Self {
        let folder = folder();
        let source = spec.write(folder.path());
        let image = folder.path().join("m.image");
        let mut options = PackOptions::new(&source, &image);
        (options.weights, options.bundle_neurons) = (weights, Some(bundle));
        packed(&options).unwrap();
        let mut state = 9u32;
        let ids: Vec<u32> = (0..tokens)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) % spec.vocab as u32
            })
            .collect();
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        std::fs::write(folder.path().join("ids"), words.join(", ")).unwrap();
        Bench {
            folder,
            source,
            image,
            ids,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn options(&self, target: &str) -> ProfileOptions {
        ProfileOptions {
            memory_bytes: Some(64 << 20),
            ..ProfileOptions::new(&self.image, Text::Ids(self.path("ids")), self.path(target))
        }
    }
}

pub fn profiled(options: &ProfileOptions) -> Result<ProfileReport, ProfileError> {
    profile(options, &|_, _, _| true)
}

/// An image in memory.
pub struct Loaded {
    pub bytes: Vec<u8>,
}

impl Loaded {
    pub fn new(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        Loaded { bytes }
    }

    pub fn image(&self) -> Image<'_> {
        Image::new_checked(&self.bytes, self.bytes.len() as u64).unwrap()
    }

    pub fn blob(&self, kind: SectionKind, layer: usize, expert: usize) -> Option<&[u8]> {
        let section = self.image().find_of(kind, layer, expert)?;
        Some(&self.bytes[section.offset as usize..][..section.data_bytes as usize])
    }

    /// The model's neuron in each place of a section.
    pub fn order(&self, layer: usize, expert: usize) -> Vec<usize> {
        let bytes = self.blob(SectionKind::NeuronOrder, layer, expert).unwrap();
        let words = bytes.as_chunks().0.iter();
        words
            .map(|word| u32::from_le_bytes(*word) as usize)
            .collect()
    }

    pub fn with_session<T>(
        &self,
        run: impl for<'m> FnOnce(&mut Session<'m, SimFlash<'m, 'm>, OneLane, &'m SimClock>) -> T,
    ) -> T {
        let options = PlanOptions {
            memory_bytes: 64 << 20,
            seq_len: CHUNK,
            batch_tokens: CHUNK,
            ..PlanOptions::default()
        };
        let plan = Plan::new(&self.image(), options).unwrap();
        let mut region = vec![0; plan.budget.total_bytes().unwrap()];
        let clock = SimClock::default();
        let flash = SimFlash::new(&self.bytes, &clock, Latency::NONE, 1);
        let kernels = Kernels::best();
        let mut session = Session::new(
            self.image(),
            plan,
            &mut region,
            flash,
            OneLane,
            &clock,
            kernels,
        )
        .unwrap();
        session.load(&mut |_, _| {}).unwrap();
        run(&mut session)
    }
}
